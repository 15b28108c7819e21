"""Merging on networks of two layers, with numbers worked by hand."""

import pytest
import torch
from torch import nn

from orchestra_flwr.config import MethodConfig, Section
from orchestra_flwr.merging import (
    FedEMA,
    FedU,
    OwnState,
    Replace,
    build_merging,
    divergence,
    keeps_state,
)
from orchestra_flwr.methods import METHODS, Method, Role, build_method


class Toy(Method):
    """Two convolutions with 9 equal weights each, a shortcut, a BatchNorm and a predictor."""

    Settings = Section
    roles = dict.fromkeys(("backbone", "predictor", "target_backbone"), Role.SHARED)

    def __init__(self, config):
        super().__init__(config, 1)
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 1, 3, bias=False),
            nn.BatchNorm2d(1),
            nn.Conv2d(1, 1, 3, bias=False),
            nn.Conv2d(1, 1, 1, bias=False),
        )
        self.predictor = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
        self.target_backbone = nn.Conv2d(1, 1, 3).requires_grad_(False)
        fill(self, 0)

    def recipes(self):
        return ()

    def loss(self, batch):
        raise NotImplementedError

    def backbones(self):
        return {"online": self.backbone}


@torch.no_grad()
def fill(method, value):
    """Every float of the state becomes `value`."""
    for tensor in method.state(Role.SHARED).values():
        tensor.fill_(value)


@torch.no_grad()
def set_convolutions(method, first, second):
    method.backbone[0].weight.fill_(first)
    method.backbone[2].weight.fill_(second)


def values(module):
    return {name: t.flatten()[0].item() for name, t in module.state_dict().items()}


@pytest.fixture
def toy(tiny):
    config = tiny().model_copy(update={"method": MethodConfig(name="toy")})
    return lambda: Toy(config)


def copied(own):
    """As it comes back from disk."""
    return OwnState({name: t.clone() for name, t in own.tensors.items()}, dict(own.figures))


def test_divergence_is_the_mean_distance_of_the_given_tensors():
    """|(3, 4)| = 5 and |1| = 1, so 3; what only the other side holds does not count."""
    one = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([2.0])}
    other = {"a": torch.zeros(2), "b": torch.tensor([1.0]), "c": torch.tensor([9.0])}
    assert divergence(one, other) == 3.0


def fedu_round(method, merging, own, moved, predictor):
    """Merges, then trains: convolutions move by (first, second), the predictor to a value."""
    merging.merge(method, own)
    with torch.no_grad():
        method.backbone[0].weight.add_(moved[0])
        method.backbone[2].weight.add_(moved[1])
        for tensor in method.predictor.state_dict().values():
            tensor.fill_(predictor)
    return copied(merging.keep(method))


@pytest.mark.parametrize(
    ("moved", "expected", "takes_own"),
    [
        ((0.2, 0.1), 0.45, True),  # 3 * .2 and 3 * .1: mean .45, above .4
        ((0.1, 0.1), 0.3, False),
        ((0.0, 0.0), 0.0, False),
    ],
)
def test_fedu_decides_by_how_far_the_convolutions_moved_in_the_clients_last_training(
    toy, moved, expected, takes_own
):
    own = fedu_round(toy(), FedU(0.4), None, moved, predictor=5)
    assert own.figures["divergence"] == pytest.approx(expected, abs=1e-6)
    assert {name.partition(".")[0] for name in own.tensors} == {"predictor"}

    received, merging = toy(), FedU(0.4)
    fill(received, 2)
    merging.merge(received, own)
    wanted = 5 if takes_own else 2
    assert {v for n, v in values(received.predictor).items() if "tracked" not in n} == {wanted}
    assert {v for n, v in values(received.backbone).items() if "tracked" not in n} == {2}
    assert merging.told() == {"own_predictor": float(takes_own)}


def test_fedu_does_not_fire_because_of_anything_but_the_backbones_convolutions(toy):
    """The published update counts every tensor, batch counters included: one round is enough.

    Here all else moves by 1000: BatchNorm, its counters, the shortcut, the predictor, the target.
    """
    method, merging = toy(), FedU(0.4)
    merging.merge(method, None)
    set_convolutions(method, 0.1, 0.1)
    with torch.no_grad():
        for name, tensor in method.state_dict().items():
            if name not in ("backbone.0.weight", "backbone.2.weight"):
                tensor.add_(1000)
    own = copied(merging.keep(method))
    assert own.figures["divergence"] == pytest.approx(0.3)
    received = toy()
    FedU(0.4).merge(received, own)
    assert set(values(received.predictor).values()) == {0}


def test_fedu_takes_the_average_at_first_and_always_moves_on_from_it(toy):
    received, merging = toy(), FedU(0.0)
    fill(received, 2)
    merging.merge(received, None)
    assert {v for n, v in values(received.predictor).items() if "tracked" not in n} == {2}
    assert merging.keep(received).figures["divergence"] == 0  # since merging, not since ever


def fedema_own(toy, convolutions=(1.0, 3.0), value=4.0, **figures):
    method = toy()
    fill(method, value)
    set_convolutions(method, *convolutions)
    kept = copied(FedEMA(None, 0.7).keep(method))
    return OwnState(kept.tensors, figures)


def test_fedema_mixes_by_hand(toy):
    """Server's convolutions are 0: distances 3 * 1 and 3 * 3, mean 6; lambda .05: mu = .3."""
    received, merging = toy(), FedEMA(0.05, 0.7)
    merging.merge(received, fedema_own(toy))
    told = values(received.backbone)
    assert (told["0.weight"], told["2.weight"]) == pytest.approx((0.3, 0.9))
    assert told["1.weight"] == told["3.weight"] == pytest.approx(0.3 * 4)
    assert values(received.predictor)["0.weight"] == pytest.approx(1.2)
    assert merging.told() == {"mu": pytest.approx(0.3)}


def test_fedema_leaves_buffers_and_what_is_not_trained_as_received(toy):
    received = toy()
    fill(received, 2)
    own = fedema_own(toy, convolutions=(9, 9))
    FedEMA(10.0, 0.7).merge(received, own)
    for part in (received.backbone[1], received.predictor[1]):
        assert values(part)["running_mean"] == values(part)["running_var"] == 2
        assert values(part)["weight"] == 4
    assert values(received.target_backbone)["weight"] == 2
    assert not any("running" in n or "tracked" in n or "target" in n for n in own.tensors)


def test_fedema_takes_no_more_than_all_of_its_own(toy):
    received, merging = toy(), FedEMA(100.0, 0.7)
    merging.merge(received, fedema_own(toy))
    assert merging.told() == {"mu": 1.0}
    assert values(received.predictor)["0.weight"] == pytest.approx(4)


def test_fedema_finds_its_lambda_at_the_first_merge_and_keeps_it(toy):
    """Distance 6 gives .7: lambda = .7 / 6. At distance 3 mu is then .35, at 12 it is 1."""
    received, first = toy(), FedEMA(None, 0.7)
    first.merge(received, fedema_own(toy))
    assert first.told() == {"mu": pytest.approx(0.7)}
    frozen = first.keep(received).figures
    assert frozen == {"lambda": pytest.approx(0.7 / 6)}
    for convolutions, mu in (((1.0, 1.0), 0.35), ((4.0, 4.0), 1.0)):
        later = FedEMA(None, 0.7)
        later.merge(toy(), fedema_own(toy, convolutions, **frozen))
        assert later.told() == {"mu": pytest.approx(mu)}
        assert later.keep(received).figures == frozen


def test_fedema_without_own_state_or_distance_takes_the_servers(toy):
    for own in (None, fedema_own(toy, convolutions=(0.0, 0.0), value=0.0)):
        received, merging = toy(), FedEMA(None, 0.7)
        merging.merge(received, own)
        assert merging.told() == {"mu": 0.0} and merging.keep(received).figures == {}
        assert set(values(received.backbone).values()) == {0}


def test_the_policy_that_is_asked_for(tiny):
    for name, kind in (("replace", Replace), ("fedu", FedU), ("fedema", FedEMA)):
        config = tiny(f"federation.merge={name}", "method=simsiam")
        assert isinstance(build_merging(config.federation), kind)
        assert keeps_state(config, build_method(config, 1)) == (name != "replace")
    assert keeps_state(tiny(), build_method(tiny(), 1)) is False


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_backbone_with_convolutions_to_compare(tiny, name):
    """Else its divergence would always be 0, and no policy would ever act."""
    method = build_method(tiny(f"method={name}"), 1)
    merging = FedU(0.4)
    merging.merge(method, None)
    with torch.no_grad():
        for parameter in method.backbone.parameters():
            parameter.add_(1)
    assert merging.keep(method).figures["divergence"] > 1
