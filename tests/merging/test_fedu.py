import pytest
import torch

from orchestra_flwr.merging.fedu import FedU


def fedu(threshold=0.4):
    return FedU(FedU.Settings(threshold=threshold))


def fedu_round(learner, merging, state, moved, predictor):
    """Merges, then trains: convolutions move by (first, second), the predictor to a value."""
    merging.merge(learner, state)
    with torch.no_grad():
        learner.method.backbone[0].weight.add_(moved[0])
        learner.method.backbone[2].weight.add_(moved[1])
        for tensor in learner.method.predictor.state_dict().values():
            tensor.fill_(predictor)
    return merging.keep(learner)


@pytest.mark.parametrize(
    ("moved", "expected", "keeps"),
    [
        ((0.2, 0.1), 0.45, True),  # 3 * .2 and 3 * .1: mean .45, above .4
        ((0.1, 0.1), 0.3, False),
        ((0.0, 0.0), 0.0, False),
    ],
)
def test_decides_by_how_far_the_convolutions_moved_in_the_clients_last_training(
    toy, stored, moved, expected, keeps
):
    state = stored(fedu_round(toy(), fedu(), None, moved, predictor=5))
    assert state.values["divergence"] == pytest.approx(expected, abs=1e-6)
    assert {name.partition(".")[0] for name in state.tensors} == {"predictor"}

    received, merging = toy(), fedu()
    received.fill(2)
    merging.merge(received, state)
    assert set(received.values("predictor").values()) == {5 if keeps else 2}
    assert set(received.values("backbone").values()) == {2}
    assert merging.metrics() == {"own_predictor": float(keeps)}


def test_does_not_fire_because_of_anything_but_the_backbones_convolutions(toy, stored):
    """The published update counts every tensor, batch counters included: one round is enough.

    Here all else moves by 1000: BatchNorm, its counters, the shortcut, the predictor, the target.
    """
    learner, merging = toy(), fedu()
    merging.merge(learner, None)
    learner.set_convolutions(0.1, 0.1)
    with torch.no_grad():
        for name, tensor in learner.method.state_dict().items():
            if name not in ("backbone.0.weight", "backbone.2.weight"):
                tensor.add_(1000)
    state = stored(merging.keep(learner))
    assert state.values["divergence"] == pytest.approx(0.3)
    received = toy()
    fedu().merge(received, state)
    assert set(received.values("predictor").values()) == {0}


def test_takes_the_average_at_first_and_always_moves_on_from_it(toy):
    received, merging = toy(), fedu(0.0)
    received.fill(2)
    merging.merge(received, None)
    assert set(received.values("predictor").values()) == {2}
    assert merging.keep(received).values["divergence"] == 0  # since merging, not since ever
