"""Federations without a server: cycle, tree and random graph in whole runs."""

import errno
import os
from functools import partial
from tempfile import NamedTemporaryFile

import numpy as np
import pytest
import torch

from orchestra_flwr import load_encoder
from orchestra_flwr.config import ConfigError
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.exchanges.cycle import Cycle
from orchestra_flwr.federation.exchanges.tree import Tree
from orchestra_flwr.federation.gossip import (
    largest_factor,
    metropolis_weights,
    second_eigenvalue,
    uniform_weights,
)
from orchestra_flwr.federation.messages.fields import CONFIG
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server import named_models
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.methods import Role
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.training import build_learner

BRIGHTNESS = np.array([0, 0.2, 0.4, 1])


def nodes(state):
    """(4, 8) the flat models of all nodes of the linear method."""
    first = torch.cat([state["weights"].reshape(-1), state["bias"]])
    others = [state[f"models/node-{name}/shared"] for name in "bcd"]
    return torch.stack([first, *others]).numpy()


def by_hand(weights, rounds, trains=(True,) * 4):
    values = np.zeros(4)
    for _ in range(rounds):
        values = weights @ np.where(trains, (values + BRIGHTNESS) / 2, values)
    return np.repeat(values[:, None], 8, 1)


@pytest.mark.parametrize(
    ("overrides", "weights"),
    [
        (("exchange=cycle",), metropolis_weights(Cycle.graph(None, 4))),
        (("exchange=tree",), metropolis_weights(Tree.graph(None, 4))),
        (("exchange=tree", "exchange.mixing=uniform"), uniform_weights(Tree.graph(None, 4))),
        (
            ("exchange=cycle", "exchange.mixes=3"),
            np.linalg.matrix_power(metropolis_weights(Cycle.graph(None, 4)), 3),
        ),
    ],
)
@pytest.mark.parametrize(
    ("wire", "tolerance"), [pytest.param("float32", 1e-6, marks=pytest.mark.slow), ("int8", 1e-2)]
)
def test_nodes_train_and_mix_by_the_matrix(toy, federate, overrides, weights, wire, tolerance):
    config = toy(*overrides, "federation.rounds=3", f"federation.wire={wire}")
    run = federate(config, evaluate=False)
    np.testing.assert_allclose(nodes(run.state), by_hand(weights, 3), atol=tolerance)
    assert run.summary["exchange"] == {
        "second_eigenvalue": pytest.approx(second_eigenvalue(weights)),
        "largest_factor": pytest.approx(largest_factor(weights)),
    }


def test_the_mean_is_fedavgs_and_in_a_complete_graph_every_node(toy, federate):
    """Of equal weights, whatever the clients' numbers of images."""
    star = federate(
        toy("federation.weighting=uniform", "federation.rounds=3", run="star"), evaluate=False
    ).state
    average = torch.cat([star["weights"].reshape(-1), star["bias"]]).numpy()
    cycle = federate(toy("exchange=cycle", "federation.rounds=3"), evaluate=False).state
    np.testing.assert_allclose(nodes(cycle).mean(0), average, atol=1e-6)
    assert np.ptp(nodes(cycle)[:, 0]) > 0.05
    complete = toy("exchange=random", "exchange.edge=1", "federation.rounds=3", run="complete")
    every = nodes(federate(complete, evaluate=False).state)
    np.testing.assert_allclose(every, np.broadcast_to(average, (4, 8)), atol=1e-6)


def test_a_node_that_fails_mixes_the_model_that_it_has(toy, federate, watched):
    """So the mean of all nodes is never moved by a mix."""

    def fail(client, round_, sent, reply):
        if client == "d":
            reply.content[CONFIG]["schema"] = "other"

    config = toy("exchange=cycle", "federation.rounds=2")
    run = federate(config, app=watched(fail), evaluate=False)
    expected = by_hand(metropolis_weights(Cycle.graph(None, 4)), 2, (True, True, True, False))
    np.testing.assert_allclose(nodes(run.state), expected, atol=1e-6)


@pytest.fixture
def many(tiny, tmp_path):
    """Ten models of noise, in memory and on the disk."""
    config = tiny("method=simclr")
    names = [f"n{number}" for number in range(10)]
    made = []
    for folder in (None, tmp_path):
        learner = build_learner(config, 1)
        models = Models(config, learner, Schemas.of(learner, config), names, folder)
        generator = np.random.default_rng(0)
        for name in names:
            noise = generator.normal(size=models.schemas.shared.size).astype(np.float32)
            state = models.load(name).state(Role.SHARED)
            models.schemas.shared.unpack(noise, state)
        made.append(models)
    return made


def flats(models):
    return np.stack([models.shared(name).copy() for name in models.names])


def test_mixing_shrinks_the_distance_from_consensus_by_the_second_eigenvalue(many):
    weights = metropolis_weights(Cycle.graph(None, 10))
    for models in many:
        before, old = models.consensus_distance(models.names), flats(models)
        rows = {
            name: dict(zip(models.names, row, strict=True))
            for name, row in zip(models.names, weights, strict=True)
        }
        for _ in range(40):  # until nothing but the slowest eigenvector is left
            models.mix(rows)
        distance = models.consensus_distance(models.names)
        models.mix(rows)
        shrunk = models.consensus_distance(models.names) / distance
        assert shrunk == pytest.approx(0.873, abs=2e-3) and distance < before * 0.873**30
        new = flats(models)
        expected = np.linalg.matrix_power(weights, 41) @ old.astype(np.float64)
        np.testing.assert_allclose(new, expected, atol=2e-6)
        np.testing.assert_allclose(new.mean(0), old.mean(0), atol=1e-6)
    np.testing.assert_array_equal(flats(many[0]), flats(many[1]))


def test_a_mix_takes_the_models_as_they_were(many):
    """Two that change places."""
    for models in many:
        old = flats(models)
        models.mix({"n0": {"n1": 1.0}, "n1": {"n0": 1.0}})
        np.testing.assert_array_equal(flats(models), old[[1, 0, *range(2, 10)]])


def test_the_distance_and_the_mean_by_hand(many):
    for models in many:
        old = flats(models).astype(np.float64)
        trained = np.concatenate([old[:, span] for span in models.trained_spans], axis=1)
        mean = trained.mean(0)
        apart = np.sqrt(np.square(trained - mean).sum(1).mean()) / np.linalg.norm(mean)
        assert models.consensus_distance(models.names) == pytest.approx(apart)
        learner = models.load_mean(models.names)
        packed = models.schemas.shared.pack(learner.state(Role.SHARED))
        np.testing.assert_allclose(packed, old.mean(0), atol=1e-6)
        np.testing.assert_array_equal(flats(models), old.astype(np.float32))


def test_on_the_disk_and_in_memory_are_the_same_checkpoint(many, tmp_path):
    memory, disk = (models.tensors() for models in many)
    assert memory.keys() == disk.keys()
    assert all(torch.equal(tensor, disk[name]) for name, tensor in memory.items())
    changed = {name: tensor.clone() + 1 for name, tensor in memory.items()}
    many[1].load_tensors(changed)
    assert all(torch.equal(tensor, changed[n]) for n, tensor in many[1].tensors().items())
    assert list(tmp_path.iterdir()) == []  # the file has no name


def test_the_servers_memory_does_not_grow_with_the_nodes(tiny, tmp_path):
    """All arrays of models that wait are in the file."""
    config = tiny("method=simclr")
    learner = build_learner(config, 1)
    names = [f"n{number}" for number in range(30)]
    models = Models(config, learner, Schemas.of(learner, config), names, tmp_path)
    waiting = [models._waiting[name][Role.SHARED] for name in names[1:]]
    assert all(isinstance(array.base, np.memmap) or isinstance(array, np.memmap)
               for array in waiting)  # fmt: skip


def test_the_room_for_models_on_the_disk_is_taken_before_they_are_written(tmp_path, monkeypatch):
    """A page of a mapped file for which a full disk has no room would end the process (SIGBUS)."""
    monkeypatch.setattr(named_models, "TemporaryFile", partial(NamedTemporaryFile, delete=False))
    rows = named_models._rows_on_disk(tmp_path, ["a", "b"], 1 << 18)
    (file,) = tmp_path.iterdir()
    taken, size = file.stat().st_blocks * 512, sum(row.nbytes for row in rows.values())
    assert taken >= file.stat().st_size == size


def test_a_disk_that_is_too_full_for_the_models_is_one_line(tiny, tmp_path, federate, monkeypatch):
    def disk_is_full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", disk_is_full)
    with pytest.raises(FederationError, match="cannot write the run folder .*: .*No space left"):
        federate(run_of(tiny, tmp_path))


def run_of(tiny, tmp_path, *overrides, name="run"):
    return tiny("method=simclr", "exchange=cycle", "training.lr=0.03", "data.train_limit=80",
                f"run_dir={tmp_path / name}", *overrides)  # fmt: skip


def test_the_mean_model_and_each_node_are_evaluated_and_saved(tiny, tmp_path, federate):
    config = run_of(tiny, tmp_path, "federation.rounds=2", "evaluation.every=2",
                    "evaluation.unsupervised=true")  # fmt: skip
    run = federate(config)
    first, between, last = run.records
    assert "models" not in first and "models" not in between and "nodes" not in between
    assert last["models"].keys() == {f"node-{client}" for client in range(4)}
    for score in ("knn", "linear"):
        accuracies = [entry["scores"]["online"][score] for entry in last["models"].values()]
        assert last["nodes"]["online"][score] == pytest.approx(
            {"mean": np.mean(accuracies), "min": min(accuracies), "max": max(accuracies)}
        )
        assert run.summary[score] == last["scores"]["online"][score]
    assert 0 < last["consensus"] < 1 and run.summary["consensus"] == last["consensus"]
    assert run.summary["nodes"] == last["nodes"] and run.summary["model"] == "mean"
    names = sorted(path.stem for path in run.folder.encoders.glob("*.safetensors"))
    assert names == sorted(last["models"])
    encoders = [load_encoder(run.folder.encoders / f"{name}.safetensors") for name in names]
    mean = load_encoder(run.folder.path).state_dict()
    for key, tensor in mean.items():
        if tensor.is_floating_point():
            states = torch.stack([encoder.state_dict()[key] for encoder in encoders]).double()
            torch.testing.assert_close(tensor.double(), states.mean(0), atol=1e-6, rtol=0)


@pytest.mark.parametrize("wire", [pytest.param("float32", marks=pytest.mark.slow), "int4"])
def test_killed_and_resumed_or_in_another_order_the_same_bits(
    tiny, tmp_path, federate, watched, scrambled_grid, wire
):
    overrides = ("federation.rounds=2", "evaluation.every=100", f"federation.wire={wire}")
    whole = federate(run_of(tiny, tmp_path, *overrides), evaluate=False)
    crossed = federate(run_of(tiny, tmp_path, *overrides, name="crossed"), grid=scrambled_grid,
                       evaluate=False)  # fmt: skip

    def pull_the_plug(client, round_, sent, reply):
        if (client, round_) == ("2", 2):
            raise KeyboardInterrupt

    torn = run_of(tiny, tmp_path, *overrides, name="torn")
    folder = RunFolder.create(torn)
    with pytest.raises(KeyboardInterrupt):
        federate(torn, app=watched(pull_the_plug), folder=folder, evaluate=False)
    resumed = federate(torn, folder=RunFolder.resume(folder.path), evaluate=False)
    for other in (crossed, resumed):
        assert whole.state.keys() == other.state.keys()
        assert all(torch.equal(t, other.state[name]) for name, t in whole.state.items())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("method=orchestra",),
            "method=orchestra: must be one without server state with exchange=cycle, which has "
            "no server",
        ),
        (
            ("server_optimizer=adam",),
            "server_optimizer=adam: must be mean with exchange=cycle, which has no server",
        ),
        (
            ("federation.participation=0.5",),
            "federation.participation=0.5: must be 1 with exchange=cycle, all nodes train in "
            "every round",
        ),
        (
            ("exchange=random", "exchange.edge=0.001", "federation.clients=30"),
            "exchange.edge=0.001: none of 1000 random graphs of 30 nodes is connected; must be "
            "larger",
        ),
    ],
)
def test_what_needs_a_server_or_has_no_graph_is_refused_in_a_line(tiny, overrides, message):
    with pytest.raises(ConfigError) as error:
        tiny("method=simclr", "exchange=cycle", *overrides)
    assert str(error.value) == message


def test_the_graph_follows_from_the_runs_seed(tiny):
    graphs = []
    for seed in (1, 2):
        exchange = tiny("method=simclr", "exchange=random", f"seed={seed}").exchange.build()
        exchange.models([str(number) for number in range(12)])
        graphs.append(exchange.evaluated().keys() and exchange._mixing)
    assert graphs[0] != graphs[1]
