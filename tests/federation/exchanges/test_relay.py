"""Several stages a round: clients in a row, each trains what the one before sent."""

import numpy as np
import pytest
import torch

from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.client.state_folder import ClientStateFolder
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import CONFIG
from orchestra_flwr.federation.messages.schema import Schemas, pack_state
from orchestra_flwr.federation.population import load_population
from orchestra_flwr.methods import Role
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, torch_threads, train_round

RELAY = """
    from pydantic import Field
    from orchestra_flwr.config import Section
    from orchestra_flwr.federation.exchanges import Exchange, Stage, Task

    class Relay(Exchange):
        class Settings(Section):
            laps: int = Field(1, ge=1)

        def stages(self, round_, cohort):
            for client in [*cohort] * self.settings.laps:
                yield Stage((Task(client, ("model",)),))
"""
BRIGHTNESS = {"a": 0, "b": 0.2, "c": 0.4, "d": 1}


@pytest.fixture
def relay(toy):
    toy.package({"exchanges/relay.py": RELAY})
    return lambda *overrides, **run: toy("exchange=star", "exchange.name=relay", *overrides, **run)


def value(state):
    flat = torch.cat([state["weights"].reshape(-1), state["bias"]])
    torch.testing.assert_close(flat, flat[:1].expand(8), atol=2e-3, rtol=0)
    return float(flat[0])


def along(clients, start=0.0):
    for client in clients:
        start = (start + BRIGHTNESS[client]) / 2
    return start


@pytest.mark.parametrize(
    ("wire", "tolerance"), [("float32", 1e-7), ("float16", 1e-3), ("int8", 2e-2)]
)
def test_each_trains_what_the_one_before_sent(relay, federate, wire, tolerance):
    run = federate(relay("federation.rounds=2", f"federation.wire={wire}"), evaluate=False)
    assert value(run.state) == pytest.approx(along("abcdabcd"), abs=tolerance)
    record = run.records[1]["clients"]
    assert (record["cohort"], record["ok"], record["examples"]) == (4, 4, 28)


def test_who_fails_is_passed_over(relay, federate, watched):
    """The share of good replies is that of the round, not of a stage, which has one client."""

    def fail(client, round_, sent, reply):
        if client == "b":
            reply.content[CONFIG]["schema"] = "other"

    run = federate(relay("federation.rounds=1"), app=watched(fail), evaluate=False)
    assert value(run.state) == pytest.approx(along("acd"))
    assert run.records[1]["clients"]["ok"] == 3


def test_too_many_failures_in_a_round_end_the_run(relay, federate, watched):
    def fail(client, round_, sent, reply):
        if client in "abc":
            reply.content[CONFIG]["schema"] = "other"

    with pytest.raises(FederationError, match="1 of 4 clients .* asks for 2; clients a, b, c:"):
        federate(relay("federation.rounds=1"), app=watched(fail), evaluate=False)


def test_the_servers_optimizer_makes_a_step_a_stage(relay, federate):
    config = relay("federation.rounds=1", "server_optimizer=momentum", "server_optimizer.lr=0.5",
                   "server_optimizer.momentum=0")  # fmt: skip
    expected = 0.0
    for client in "abcd":
        expected += 0.5 * ((expected + BRIGHTNESS[client]) / 2 - expected)
    assert value(federate(config, evaluate=False).state) == pytest.approx(expected)


def test_killed_in_a_stage_the_round_is_repeated_whole(relay, federate, watched):
    overrides = ("federation.rounds=3", "federation.wire=int8", "exchange.laps=2")
    whole = federate(relay(*overrides), evaluate=False)
    calls = []

    def pull_the_plug(client, round_, sent, reply):
        calls.append((round_, client))
        if calls.count((2, "c")) == 2:  # in the round's seventh stage
            raise KeyboardInterrupt

    torn = relay(*overrides, run="torn")
    folder = RunFolder.create(torn)
    with pytest.raises(KeyboardInterrupt):
        federate(torn, app=watched(pull_the_plug), folder=folder, evaluate=False)
    resumed = federate(torn, folder=RunFolder.resume(folder.path), evaluate=False)
    assert all(torch.equal(t, resumed.state[name]) for name, t in whole.state.items())
    assert value(whole.state) == pytest.approx(along("abcd" * 6), abs=2e-2)


def real(tiny, tmp_path, *overrides):
    return tiny(
        "plugins=[toys]", "exchange=star", "exchange.name=relay", "federation.clients=3",
        "federation.rounds=1", "method=byol", "partition=iid", "evaluation.every=100",
        "data.train_limit=60", f"run_dir={tmp_path / 'real'}", *overrides,
    )  # fmt: skip


def test_it_is_sequential_training(tiny, tmp_path, federate, relay):
    """BYOL on digits, with `train_round` called for one client after the other."""
    config = real(tiny, tmp_path)
    state = federate(config, evaluate=False).state
    population = load_population(config)
    learner = build_learner(config, 1)
    for stage, (name, part) in enumerate(population.parts.items()):
        images = population.dataset.train.images[torch.from_numpy(part)]
        fresh = build_learner(config, 1)
        for tensor, sent in zip(
            fresh.state(Role.SHARED).values(), learner.state(Role.SHARED).values(), strict=True
        ):
            tensor.copy_(sent)
        with torch_threads(config.training.threads):
            train_round(fresh, images, config, ClientSeed(config.seed, 1, name, stage=stage))
        learner = fresh
    assert all(torch.equal(state[n], t) for n, t in learner.state(Role.SHARED).items())


def test_a_client_draws_anew_in_a_later_stage_and_keeps_its_state_of_each(tiny, tmp_path, relay):
    config = real(tiny, tmp_path, "merging=fedema")
    learner = build_learner(config, 1)
    images = load_population(config).dataset.train.images[:20]
    arrays = list(pack_state(learner, Schemas.of(learner, config)).values())

    def fit(folder, **about):
        client = OrchestraClient(config, "0", images, state_folder=folder)
        return client.fit(arrays, {"round": 1, "train": True, **about})[0][0]

    first = fit(ClientStateFolder(tmp_path / "a", "run"))
    alone = fit(ClientStateFolder(tmp_path / "b", "run"), stage=1)
    assert (first != alone).any()
    folder = ClientStateFolder(tmp_path / "a", "run")
    second = fit(folder, stage=1)  # it has its own state of stage 0 now
    assert (second != alone).any()
    np.testing.assert_array_equal(second, fit(folder, stage=1))
    np.testing.assert_array_equal(first, fit(folder))
