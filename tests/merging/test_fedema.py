import pytest
import torch

from orchestra_flwr.merging import ClientState
from orchestra_flwr.merging.fedema import FedEMA
from orchestra_flwr.training import build_learner


def fedema(scale=None, first_mu=0.7):
    return FedEMA(FedEMA.Settings(scale=scale, first_mu=first_mu))


@pytest.fixture
def kept(toy, stored):
    """What a client kept that has trained to these convolutions, and all else to a value."""

    def keep(convolutions=(1.0, 3.0), value=4.0, **values):
        learner = toy()
        learner.fill(value)
        learner.set_convolutions(*convolutions)
        return ClientState(stored(fedema().keep(learner)).tensors, values)

    return keep


def test_mixes_by_hand(toy, kept):
    """Server's convolutions are 0: distances 3 * 1 and 3 * 3, mean 6; lambda .05: mu = .3."""
    received, merging = toy(), fedema(0.05)
    merging.merge(received, kept())
    mixed = received.values("backbone")
    assert (mixed["0.weight"], mixed["2.weight"]) == pytest.approx((0.3, 0.9))
    assert mixed["1.weight"] == mixed["3.weight"] == pytest.approx(0.3 * 4)
    assert received.values("predictor")["0.weight"] == pytest.approx(1.2)
    assert merging.metrics() == {"mu": pytest.approx(0.3)}


def test_leaves_buffers_and_what_is_not_trained_as_received(toy, kept):
    received, state = toy(), kept(convolutions=(9, 9))
    received.fill(2)
    fedema(10.0).merge(received, state)
    for norm in ("backbone.1", "predictor.1"):
        values = received.values(norm)
        assert values["running_mean"] == values["running_var"] == 2
        assert values["weight"] == 4
    assert received.values("target_backbone")["weight"] == 2
    assert not any("running" in n or "tracked" in n or "target" in n for n in state.tensors)


def test_the_rows_of_other_clients_are_not_taken_back(tiny):
    """What a client kept of others' rows is old; its answer would undo what they have learned."""
    config = tiny("method=byol", "merging=fedema", "terms.verification.weight=1")
    learner, merging = build_learner(config, 1), fedema(first_mu=0.7)
    state = merging.keep(learner)
    kept = ClientState({n: t.clone() for n, t in state.tensors.items()}, {})
    with torch.no_grad():
        for tensor in learner.trained().values():
            tensor.add_(1)
    were = {n: t.clone() for n, t in learner.trained().items()}
    merging.merge(learner, kept)
    moved = {n for n, t in learner.trained().items() if not torch.equal(t, were[n])}
    assert merging.metrics() == {"mu": pytest.approx(0.7)}
    assert moved == {n for n in were if not n.startswith("terms.")} == set(kept.tensors)


def test_takes_no_more_than_all_of_its_own(toy, kept):
    received, merging = toy(), fedema(100.0)
    merging.merge(received, kept())
    assert merging.metrics() == {"mu": 1.0}
    assert received.values("predictor")["0.weight"] == pytest.approx(4)


def test_finds_its_lambda_at_the_first_merge_and_keeps_it(toy, kept):
    """Distance 6 gives .7: lambda = .7 / 6. At distance 3 mu is then .35, at 12 it is 1."""
    received, first = toy(), fedema()
    first.merge(received, kept())
    assert first.metrics() == {"mu": pytest.approx(0.7)}
    frozen = first.keep(received).values
    assert frozen == {"lambda": pytest.approx(0.7 / 6)}
    for convolutions, mu in (((1.0, 1.0), 0.35), ((4.0, 4.0), 1.0)):
        later = fedema()
        later.merge(toy(), kept(convolutions, **frozen))
        assert later.metrics() == {"mu": pytest.approx(mu)}
        assert later.keep(received).values == frozen


def test_without_earlier_state_or_distance_the_servers_is_taken(toy, kept):
    for state in (None, kept(convolutions=(0.0, 0.0), value=0.0)):
        received, merging = toy(), fedema()
        merging.merge(received, state)
        assert merging.metrics() == {"mu": 0.0} and merging.keep(received).values == {}
        assert set(received.values("backbone").values()) == {0}
