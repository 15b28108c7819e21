"""Sums of real clients' updates over TLS, of whom some are killed between two stages."""

import json
import re
import shutil
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

from orchestra_flwr.config import load
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.client_work.client_worker import ClientWorker
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.methods import Role
from orchestra_flwr.privacy.noisy_sums import sums_epsilon
from orchestra_flwr.privacy.secure_sums.sum_client import STAGES
from orchestra_flwr.reporting.kept_checkpoints import LATEST
from orchestra_flwr.training import build_learner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SUMS = ("method=simclr", "federation.weighting=uniform", "privacy.secure_aggregation=true",
        "federation.round_timeout=25")  # fmt: skip
NAMES = ("a", "b", "c", "d", "e", "f")


@pytest.fixture
def federation(machines):
    """Keys and photographs of some clients, who all have the list of all."""

    def make(names):
        machines.make_photos(**{name: 16 + i for i, name in enumerate(names)})
        machines.keys("server", f"folder={machines.security}", "host=127.0.0.1",
                      f"client={','.join(names)}")  # fmt: skip
        machines.keys("peers", f"folder={machines.security}")
        for name in names:
            shutil.copy(machines.security / "peers.pem", machines.security / "bundles" / name)
        return machines

    return make


def demanding(machines, name, behaviour=None):
    bounds = ("privacy.secure_aggregation=true", "privacy.min_cohort=3")
    return machines.rogue(name, behaviour or {}, *bounds)


def mean_of(machines, overrides, names):
    """What the first round makes of the model, worked out here from the clients themselves."""
    server = load(ServerConfig, [*machines.small(overrides), *overrides])
    states = []
    for name in names:
        chosen = [f"data.root={machines.photos / name}", "server=x:1", "device=cpu",
                  "training.threads=1"]  # fmt: skip
        folder = machines.folder / "alone" / name
        worker = ClientWorker(load(ClientConfig, chosen), name, folder, print)
        client = worker._client(server.for_clients(), "")
        learner = build_learner(client.config, 3)
        sent = client.schemas.shared.pack(learner.state(Role.SHARED))
        (state,), *_ = client.fit([sent], {"round": 1, "train": True})
        states.append(state.astype(np.float64))
    return client.schemas.shared.views(np.mean(states, axis=0).astype(np.float32))


def assert_same(machines, expected):
    state = load_file(machines.run / "checkpoint" / LATEST)
    for name, values in expected.items():
        assert np.allclose(state[name], values.numpy(), atol=1e-4), name


@pytest.mark.parametrize("stage", STAGES)
def test_the_sum_is_that_of_who_is_left(federation, stage):
    machines = federation(NAMES)
    overrides = (*SUMS, "federation.min_clients=6", "federation.rounds=1")
    server = machines.server(*overrides)
    server.wait_for("listening on 127.0.0.1")
    gone = ("b", "e")
    clients = [
        demanding(machines, name, {"1": f"die in {stage}"} if name in gone else {})
        for name in NAMES
    ]
    assert server.wait(1200) == 0, server.text
    for process in clients:
        process.end()
    text = clients[0].text
    assert "whatever it does, while at most 0 of those clients are on its side" in text
    assert "the sum was opened" in text
    assert {client for _, client, _ in machines.dropped()} == {*gone}
    trained = [n for n in NAMES if n not in gone or stage in ("confirm", "unmask")]
    assert_same(machines, mean_of(machines, overrides, trained))
    assert "joined with an unknown number of images" in server.text
    assert not re.search(r"joined with \d", server.text)


def test_adapters_are_summed(federation):
    """And nothing else is: no client sends the weights that nobody trains."""
    pytest.importorskip("peft", reason="needs the extra timm")
    machines = federation(NAMES[:3])
    overrides = (*SUMS, "adaptation=lora", "adaptation.rank=2", "federation.min_clients=3",
                 "federation.rounds=1")  # fmt: skip
    server = machines.server(*overrides)
    server.wait_for("listening on 127.0.0.1")
    clients = [demanding(machines, name) for name in NAMES[:3]]
    assert server.wait(1200) == 0, server.text
    for process in clients:
        process.end()
    assert "for a sum of 3 clients" in clients[0].text and "the sum was opened" in clients[0].text
    assert_same(machines, mean_of(machines, overrides, NAMES[:3]))
    config = load(ServerConfig, [*machines.small(overrides), *overrides])
    frozen = build_learner(config, 3).state(Role.FROZEN)
    assert frozen and not frozen.keys() & load_file(machines.run / "checkpoint" / LATEST).keys()


def test_a_killed_server_goes_on_with_sums(federation):
    """With noise, which clients add and account for whatever becomes of the server."""
    machines = federation(NAMES[:3])
    noise = ("model.norm=group", "privacy.clip=1", "privacy.noise_multiplier=0.5")
    overrides = (*SUMS, *noise, "federation.min_clients=3", "federation.rounds=3")
    server = machines.server(*overrides)
    server.wait_for("listening on 127.0.0.1")
    clients = [demanding(machines, name) for name in NAMES[:3]]
    clients[0].wait_for("round 2: training")
    server.send(signal.SIGKILL)
    server.wait()
    again = machines.server(f"resume={machines.run}")
    assert again.wait(1200) == 0, again.text
    for process in clients:
        process.end()
    assert [record["round"] for record in machines.metrics()] == [0, 1, 2, 3]
    assert machines.dropped() == [] and "the sum was opened" in clients[1].text
    mode = {"noise": "a share of each client", "keys": "signed"}
    summary = json.loads((machines.run / "summary.json").read_text())
    assert summary["secure_aggregation"] == mode
    records = [*machines.folder.rglob("noisy_sums.jsonl")]
    assert len(records) == 3
    assert all(len(path.read_text().splitlines()) in (3, 4) for path in records)
    updates = machines.metrics()[-1]["privacy"]["updates"]
    assert updates["epsilon"] == pytest.approx(sums_epsilon([0.5] * 3, updates["delta"]))


def test_a_run_goes_on_with_another_client_after_a_sum_that_failed(federation):
    """Two clients have confirmed the list with the third one, which is away for good."""
    machines = federation(NAMES[:4])
    server = machines.server(*SUMS, "federation.min_clients=3", "federation.rounds=3")
    server.wait_for("listening on 127.0.0.1")
    clients = [
        demanding(machines, name, {"2": "die in confirm"} if name == "c" else {})
        for name in NAMES[:3]
    ]
    assert server.wait(1200) == 1, server.text
    assert "round 2: no sum with secure aggregation: 2 of 3 clients confirmed" in server.text
    clients.pop().end()
    clients.append(demanding(machines, "d"))
    again = machines.server(f"resume={machines.run}")
    assert again.wait(1200) == 0, again.text
    for process in clients:
        process.end()
    assert "round 2 is left out" in again.text
    assert [r["clients"]["cohort"] for r in machines.metrics()] == [0, 3, 0, 3]
    assert "for a sum of 3 clients" in clients[-1].text
