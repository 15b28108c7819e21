import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import Role
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, train_round
from orchestra_flwr.training.optimizers.sgd import SGD
from orchestra_flwr.training.schedules import LocalProgress
from orchestra_flwr.training.schedules.cosine import Cosine
from orchestra_flwr.training.schedules.steps import Steps


def rates(schedule, rounds, epochs, lr=1e-3):
    """The learning rate of each local epoch of a run."""
    return [
        lr * schedule.factor(LocalProgress(round_, rounds, epoch, epochs))
        for round_ in range(1, rounds + 1)
        for epoch in range(epochs)
    ]


def steps(**options):
    return Steps(Steps.Settings(**options))


def test_the_published_steps():
    learning_rates = rates(steps(), 1, 500)
    expected = [1e-3] * 150 + [3e-4] * 150 + [9e-5] * 150 + [2.7e-5] * 50
    assert learning_rates == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("schedule", [steps(), Cosine(Cosine.Settings())])
@pytest.mark.parametrize("epochs", [1, 5, 10, 50, 100, 250, 500])
def test_by_epochs_communication_changes_no_rate(schedule, epochs):
    assert rates(schedule, 500 // epochs, epochs) == rates(schedule, 1, 500)


@pytest.mark.parametrize(("epochs", "expected"), [
    (50, [1e-3] * 3 + [3e-4] * 3 + [9e-5] * 3 + [2.7e-5]),
    (100, [1e-3, 3e-4, 3e-4, 9e-5, 2.7e-5]),
    (250, [3e-4, 2.7e-5]),
    (500, [2.7e-5]),
])  # fmt: skip
def test_by_rounds_the_published_codes_rates(epochs, expected):
    """All 500 epochs at 2.7e-5 where the clients communicate once."""
    learning_rates = rates(steps(by="rounds"), 500 // epochs, epochs)
    assert learning_rates[::epochs] == pytest.approx(expected, rel=1e-12)
    assert len(set(learning_rates)) == len(set(expected))  # none changes within a round


def test_the_cosine_by_hand():
    assert rates(Cosine(Cosine.Settings()), 2, 2, lr=1) == pytest.approx(
        [1, 0.853553, 0.5, 0.146447], abs=1e-6
    )
    assert rates(Cosine(Cosine.Settings(by="rounds")), 2, 2, lr=1) == pytest.approx(
        [1, 1, 0.5, 0.5]
    )


@pytest.mark.parametrize("value", ["[.6,.3]", "[0,.3]", "[.5,1]", "[.3,.3]"])
def test_milestones_that_cannot_be_are_refused(tiny, value):
    with pytest.raises(ConfigError, match=r"schedule.milestones=\[.*must be ascending"):
        tiny("schedule=steps", f"schedule.milestones={value}")


IMAGES = torch.randint(0, 256, (24, 1, 8, 8), dtype=torch.uint8)


def trained(config, round_):
    learner = build_learner(config, 1)
    train_round(learner, IMAGES, config, ClientSeed(0, round_, "0"))
    return learner.state(Role.SHARED)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_round_is_trained_at_its_own_rates(tiny, monkeypatch, optimizer):
    """Of rounds 2 and 3 of 4, with 3 epochs of 2 steps each, whatever came before."""
    config = tiny("method=simclr", f"optimizer={optimizer}", "schedule=steps",
                  "federation.rounds=4", "training.local_epochs=3", "training.lr=0.1")  # fmt: skip
    seen, plugin = [], config.optimizer.plugin
    update = plugin.update
    monkeypatch.setattr(
        plugin, "update", lambda self, g: (seen.append(float(self.lr)), update(self, g))[1]
    )
    for round_, expected in ((3, [3e-2] * 4 + [9e-3] * 2), (2, [0.1] * 2 + [3e-2] * 4)):
        seen.clear()
        trained(config, round_)
        assert seen == pytest.approx(expected)


def test_a_constant_rate_has_the_bits_of_no_schedule(tiny, monkeypatch):
    """It is a number, as ever; a schedule that does not fall yet ends within rounding of it."""
    chosen = ("method=simclr", "federation.rounds=4")
    plain = trained(tiny(*chosen), 1)
    stepped = trained(tiny(*chosen, "schedule=steps"), 1)
    for name, tensor in plain.items():
        torch.testing.assert_close(tensor, stepped[name], rtol=1e-4, atol=1e-5)
    kinds, update = [], SGD.update
    monkeypatch.setattr(SGD, "update", lambda o, g: (kinds.append(type(o.lr)), update(o, g))[1])
    again = trained(tiny(*chosen), 1)
    assert set(kinds) == {float}
    assert all(torch.equal(t, again[name]) for name, t in plain.items())
