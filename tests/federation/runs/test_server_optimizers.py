"""Whole runs with the server's optimizers, beside wires and clipping."""

import pytest
import torch

from orchestra_flwr.config.choices import ServerOptimizerConfig
from orchestra_flwr.methods import Role
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.training import build_learner

OPTIMIZERS = [name for name in ServerOptimizerConfig.room.found() if name != "mean"]
CLIPPED = ("federation.weighting=uniform", "privacy.clip=0.5")
WIRES = {"float32": (), "int8": ("federation.wire=int8",)}
SETTINGS = {**WIRES, "clipped": CLIPPED, "clipped int8": (*CLIPPED, *WIRES["int8"])}
QUICK = {("adam", "clipped int8"), ("momentum", "float32")}  # the hardest, and the plainest


def value(state):
    return float(state["weights"].mean())


def pull_the_plug(watched, round_, client):
    def look(name, number, sent, reply):
        if (number, name) == (round_, client):
            raise KeyboardInterrupt

    return watched(look)


def torn(config, federate, app):
    folder = RunFolder.create(config)
    with pytest.raises(KeyboardInterrupt):
        federate(config, app=app, folder=folder, evaluate=False)
    return federate(config, folder=RunFolder.resume(folder.path), evaluate=False)


def same_bits(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        pytest.param(name, setting, marks=[] if (name, setting) in QUICK else pytest.mark.slow)
        for name in OPTIMIZERS
        for setting in SETTINGS
    ],
)
def test_killed_and_resumed_it_ends_in_the_same_bits(toy, federate, watched, name, setting):
    overrides = ("federation.rounds=3", f"server_optimizer={name}", *SETTINGS[setting])
    whole = federate(toy(*overrides), evaluate=False)
    app = pull_the_plug(watched, 3, "c")
    resumed = torn(toy(*overrides, run="torn"), federate, app)
    assert same_bits(whole.state, resumed.state)
    assert any(key.startswith("server_optimizer/model/") for key in whole.state)


@pytest.mark.parametrize("setting", SETTINGS)
def test_two_rounds_of_momentum_by_hand(toy, federate, setting):
    """The clients' mean moves by half of its distance to their mean brightness, 0.4 or 0.514."""
    options = ("server_optimizer=momentum", "server_optimizer.lr=0.5")
    config = toy("federation.rounds=2", *options, "server_optimizer.momentum=0.5",
                 *SETTINGS[setting])  # fmt: skip
    clipped = setting.startswith("clipped")
    state, velocity = 0.0, 0.0
    for _ in range(2):
        updates = {}
        for brightness, size in ((0, 4), (0.2, 6), (0.4, 8), (1, 10)):
            update = (brightness - state) / 2
            if clipped:  # all eight values move alike: a norm of 0.5 is 0.5 / sqrt(8) of each
                update = max(-1, min(1, 0.5 / 8**0.5 / max(abs(update), 1e-9))) * update
            updates[brightness] = (update, 1 if clipped else size)
        total = sum(weight for _, weight in updates.values())
        velocity = 0.5 * velocity + sum(u * weight for u, weight in updates.values()) / total
        state += 0.5 * velocity
    run = federate(config, evaluate=False)
    assert value(run.state) == pytest.approx(state, abs=5e-3 if "int8" in setting else 1e-6)


@pytest.mark.parametrize("setting", ["float32", "int8"])
def test_statistics_of_batch_norm_take_the_mean(tiny, tmp_path, federate, setting):
    """One round on digits: what no gradient trains is the clients' mean, to the bit."""

    def after(name, *options):
        config = tiny("method=byol", f"run_dir={tmp_path / name}", "federation.rounds=1",
                      f"server_optimizer={name}", *options, *SETTINGS[setting])  # fmt: skip
        return config, federate(config, evaluate=False).state

    config, mean = after("mean")
    _, adam = after("adam", "server_optimizer.lr=0.001")
    learner = build_learner(config, 1)
    trained = learner.trained()
    shared = learner.state(Role.SHARED)
    assert {"running_mean", "target_backbone"} <= {
        part for name in shared.keys() - trained.keys() for part in name.split(".")
    }
    for name in shared:
        assert torch.equal(mean[name], adam[name]) == (name not in trained), name


def test_on_digits_as_well_killed_and_resumed(tiny, tmp_path, federate, watched):
    """BatchNorm, int8 and clipping together."""
    overrides = ("method=simclr", "server_optimizer=yogi", "federation.rounds=2",
                 "federation.participation=0.5", *SETTINGS["clipped int8"])  # fmt: skip
    whole = federate(tiny(*overrides, f"run_dir={tmp_path / 'whole'}"), evaluate=False)
    calls = []

    def look(client, round_, sent, reply):
        calls.append(client)
        if len(calls) == 4:
            raise KeyboardInterrupt

    config = tiny(*overrides, f"run_dir={tmp_path / 'torn'}")
    resumed = torn(config, federate, watched(look))
    assert same_bits(whole.state, resumed.state)


def test_with_one_step_a_client_it_is_adam_on_the_mean_gradient(toy, federate):
    """Differences are lr times the gradients, so epsilon counts as if divided by lr."""
    lr, epsilon = 0.5, 1e-2
    config = toy("federation.rounds=6", "federation.weighting=uniform", "training.batch_size=16",
                 f"training.lr={lr}", "training.local_epochs=1", "server_optimizer=adam",
                 "server_optimizer.lr=0.1", "server_optimizer.beta2=0.9",
                 f"server_optimizer.epsilon={epsilon}",
                 "server_optimizer.bias_correction=true")  # fmt: skip
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    central = torch.optim.Adam([weight], lr=0.1, betas=(0.9, 0.9), eps=epsilon / lr)
    for _ in range(6):
        losses = [(weight - brightness).square() / 2 for brightness in (0, 0.2, 0.4, 1)]
        central.zero_grad()
        torch.stack(losses).mean().backward()
        central.step()
    run = federate(config, evaluate=False)
    assert value(run.state) == pytest.approx(weight.item(), abs=1e-6)
    assert abs(weight.item()) > 0.1
