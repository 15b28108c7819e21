"""Clients that keep state of their own, in whole federations in this process."""

import numpy as np
import pytest
import torch
from flwr.clientapp import ClientApp
from safetensors.torch import load_file

from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.client.state_folder import ClientStateFolder
from orchestra_flwr.federation.engines.inline import InlineGrid
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS
from orchestra_flwr.federation.messages.schema import Schemas, pack_state
from orchestra_flwr.federation.population import load_population
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.federation.server.loop import FederationRun
from orchestra_flwr.federation.server.members import SimulatedMembers
from orchestra_flwr.flower.arrays import from_record, to_record
from orchestra_flwr.reporting import RunFolder, make_progress
from orchestra_flwr.training import build_learner

SILO = (
    "method=byol",
    "federation.rounds=3",
    "data.train_limit=80",
    "evaluation.every=9",
    "federation.participation=0.75",
    "training.lr=0.03",
    "partition=iid",
)


def run(config, app=client_app, folder=None):
    folder = folder or RunFolder.create(config)
    population = load_population(config)
    grid = InlineGrid(app)
    with make_progress("off", config.federation.rounds) as progress:
        summary = FederationRun(
            grid, config, SimulatedMembers(grid, population.parts),
            evaluator=Evaluator(config, population.dataset), folder=folder, progress=progress,
        ).run()  # fmt: skip
    return summary, folder


def meddling(change):
    """The real ClientApp; `change(client, round, message, reply)` looks at what travels."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        task, down = message.content[CONFIG], set(message.content[ARRAYS])
        client, round_ = int(task["client"]), task["round"]
        reply = client_app(message, context)
        change(client, round_, down, reply)
        return reply

    @app.query()
    def query(message, context):
        return client_app(message, context)

    return app


@pytest.fixture
def config(tiny, tmp_path):
    return lambda *o: tiny(*SILO, f"run_dir={tmp_path / 'run'}", *o)


def encoder(folder):
    return load_file(folder.encoder)


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def recorded(folder):
    """All but the clock."""
    return [(r["round"], r["loss"], r.get("merge"), r.get("scores")) for r in folder.read_metrics()]


POLICIES = (("merging=fedu", "merging.threshold=0.05"), ("merging=fedema",))


OTHERS = (  # methods with a target of each client's own, and with a queue that is nobody's
    ("merging=fedema", "method=mocov2", "method.queue=64"),
    ("merging=fedema", "method=dino", "method.outputs=32"),
)


@pytest.mark.parametrize(
    ("policy", "killed"),
    [
        (POLICIES[0], 3),
        *(pytest.param(other, 2, marks=pytest.mark.slow) for other in (POLICIES[1], *OTHERS)),
    ],
)
def test_killed_and_resumed_it_ends_in_the_same_bits(config, tmp_path, policy, killed):
    """The plug is pulled when two of the round's three clients have already kept their state."""
    _, whole = run(config(*policy))
    asked = []

    def pull_the_plug(client, round_, down, reply):
        if round_ == killed:
            asked.append(client)
            if len(asked) == 2:
                raise KeyboardInterrupt

    torn = config(*policy, f"run_dir={tmp_path / 'torn'}")
    folder = RunFolder.create(torn)
    with pytest.raises(KeyboardInterrupt):
        run(torn, meddling(pull_the_plug), folder)
    states = [folder.clients / str(client) for client in asked]
    assert all(list(state.rglob(f"{killed}.safetensors")) for state in states)
    run(torn, folder=RunFolder.resume(folder.path))
    assert same(encoder(whole), encoder(folder))
    assert recorded(whole) == recorded(folder)


@pytest.mark.parametrize("policy", [POLICIES[1], POLICIES[0]])
@pytest.mark.slow
def test_the_policy_makes_a_difference(config, tmp_path, policy):
    _, stateful = run(config(*policy))
    _, replaced = run(config(f"run_dir={tmp_path / 'replaced'}"))
    assert not same(encoder(stateful), encoder(replaced))
    assert stateful.clients.is_dir() and not replaced.clients.exists()
    figures = [r["merge"] for r in stateful.read_metrics()[1:]]
    (name,) = figures[0]
    assert (
        figures[0][name] == 0 and max(f[name] for f in figures) > 0
    )  # nobody had a state at first
    assert not any("merge" in r for r in replaced.read_metrics())


@pytest.mark.parametrize("real", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_only_real_clients_hear_what_they_were_used_for(federate, watched, tiny, tmp_path, real):
    """One that has lost its records can notice; those of a simulation are the run's own.

    Client 0 sends no centroids in round 1, and client 1 fails in it.
    """

    class Members(SimulatedMembers):
        is_simulated = not real

    tasks = {}

    def look(client, round_, sent, reply):
        tasks[client, round_] = {k: sent[CONFIG].get(k) for k in ("trained", "contributed")}
        if (client, round_) == ("0", 1):
            width = reply.content[ARRAYS]["local_centroids"].shape[1]
            arrays = from_record(reply.content[ARRAYS])
            arrays["local_centroids"] = np.zeros((0, width), np.float32)
            reply.content[ARRAYS] = to_record(arrays)
        if (client, round_) == ("1", 1):
            reply.content[METRICS]["examples"] = 0  # which nobody can have learned from

    config = tiny(f"run_dir={tmp_path / 'run'}", "federation.min_success=0.5")
    federate(config, app=watched(look), members=Members)
    nothing = {"trained": None, "contributed": None}
    expected = {
        0: dict.fromkeys("0123", nothing),
        1: {client: {"trained": None, "contributed": 0} for client in "0123"},
        2: {
            "0": {"trained": 1, "contributed": 0},
            "1": {"trained": None, "contributed": 0},
            "2": {"trained": 1, "contributed": 1},
            "3": {"trained": 1, "contributed": 1},
        },
    }
    for (client, round_), entries in tasks.items():
        assert entries == (expected[round_][client] if real else nothing), (client, round_)
    assert len(tasks) == 12


def test_fedu_fires_for_no_client_that_hardly_moves(config):
    """The published update fires for all, always: the batch counters' change alone is enough."""
    _, folder = run(config("merging=fedu", "training.lr=1e-6"))
    assert [r["merge"] for r in folder.read_metrics()[1:]] == [{"own_predictor": 0.0}] * 3


@pytest.mark.parametrize("policy", POLICIES)
def test_a_kept_target_never_travels(config, policy):
    given = config(*policy)
    schemas = Schemas.of(build_learner(given, 1), given)
    parts = {name.partition(".")[0] for name, _ in schemas.shared.entries}
    assert parts == {"backbone", "projector", "predictor"} and not schemas.server.size
    seen = []

    def look(client, round_, down, reply):
        arrays = from_record(reply.content[ARRAYS])
        seen.append((down, {name: array.size for name, array in arrays.items()}))

    summary, folder = run(given, meddling(look))
    assert len(seen) == 3 * 3
    assert all(sent == ({"shared"}, {"shared": schemas.shared.size}) for sent in seen)
    assert "target" not in summary and summary["backbone"] == "online"
    (state, *_) = sorted(folder.clients.rglob("*.safetensors"))
    assert {"target_backbone", "target_projector", "predictor"} <= {
        name.partition(".")[0] for name in load_file(state)
    }


def down(config):
    learner = build_learner(config, 1)
    return list(pack_state(learner, Schemas.of(learner, config)).values())


def images(n=20):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=generator)


def folder(path):
    return ClientStateFolder(path, "run")


def fit(client, config, round_):
    return client.fit(down(config), {"round": round_, "train": True})[0][0]


def test_a_clients_target_starts_from_what_it_received_and_is_its_own_from_then_on(tiny, tmp_path):
    """Round 1: decay 1 - 1e-9 leaves the target at the received online weights, through round 2."""
    config = tiny("method=byol", "merging=fedu", "method.ema=0.999999999")
    client = OrchestraClient(config, "0", images(), state_folder=folder(tmp_path))
    server = build_learner(config, 1)
    with torch.no_grad():
        for parameter in server.method.backbone.parameters():
            parameter.mul_(0.9)
    received = list(pack_state(server, Schemas.of(server, config)).values())
    client.fit([a.copy() for a in received], {"round": 1, "train": True})
    client.fit([a * 0.5 for a in received], {"round": 2, "train": True})
    for ours, sent in zip(
        client.learner.method.target_backbone.parameters(),
        server.method.backbone.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(ours, sent, atol=1e-5, rtol=1e-4)


def test_a_round_repeated_gives_the_same_bits_and_the_next_one_others(tiny, tmp_path):
    config = tiny("method=byol", "merging=fedema")

    def client():  # a new process, as it were
        return OrchestraClient(config, "0", images(), state_folder=folder(tmp_path))

    fit(client(), config, 1)
    second = fit(client(), config, 2)
    np.testing.assert_array_equal(fit(client(), config, 2), second)
    kept = client()
    np.testing.assert_array_equal(fit(kept, config, 2), second)
    np.testing.assert_array_equal(fit(kept, config, 3), fit(client(), config, 3))
    fresh = OrchestraClient(
        config, "0", images(), state_folder=ClientStateFolder(tmp_path / "x", "run")
    )
    assert (fit(fresh, config, 2) != second).any()


def test_without_a_place_it_refuses_to_train(tiny):
    config = tiny("method=byol", "merging=fedu")
    with pytest.raises(ValueError, match="client 0 keeps state .* without a folder"):
        fit(OrchestraClient(config, "0", images()), config, 1)


@pytest.mark.parametrize("method", ["byol", "orchestra"])
@pytest.mark.slow
def test_the_papers_cross_silo_run_in_small(tiny, tmp_path, method):
    """Batches of 256 are larger than the memory of 128, where the published code crashes."""
    config = tiny(
        "federation=silo", "training=silo", f"method={method}", "federation.clients=2",
        "data.train_limit=1000", "training.local_epochs=1", "clustering.memory=128",
        "federation.rounds=2", "partition=iid", f"run_dir={tmp_path / 'run'}",
        "training.batch_size=256", "merging=fedu",
    )  # fmt: skip
    summary, folder = run(config)
    assert np.isfinite([summary["knn"], summary["linear"]]).all()
    assert [r["clients"]["ok"] for r in folder.read_metrics()[1:]] == [2, 2]
    if method == "orchestra":
        clusters = folder.read_metrics()[1]["release"]["clients"]
        assert clusters == {"0": 64, "1": 64}  # L = 2 clusters of the memory's 128 images
