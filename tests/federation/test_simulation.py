"""A simulation as a whole: what goes on while its engine starts, and when it is stopped."""

import threading
from dataclasses import replace

import pytest

from orchestra_flwr.federation import simulation
from orchestra_flwr.federation.engines.inline import InlineEngine
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.population import load_population
from orchestra_flwr.federation.simulation import simulate
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.reporting.progress import Progress


class Watched(Progress):
    def __init__(self, rounds):
        super().__init__(rounds)
        self.evaluates = threading.Event()

    def images_evaluated(self, backbone, done, total):
        self.evaluates.set()


@pytest.fixture
def simulated(tiny, tmp_path):
    def run(name, seen=lambda population: population):
        config = tiny("federation.rounds=1", f"run_dir={tmp_path / name}")
        progress = Watched(1)
        folder = RunFolder.create(config)
        engine = config.engine.build(config)
        population = seen(load_population(config))
        return progress, lambda: simulate(config, population, folder, progress, engine)

    return run


def test_the_untrained_encoder_is_evaluated_while_an_engine_starts(simulated, monkeypatch):
    expected = simulated("at_once")[1]()
    progress, run = simulated("later")
    at_once = InlineEngine.run

    def later(self, serve, clients):
        assert progress.evaluates.wait(60)  # nobody serves yet
        return at_once(self, serve, clients)

    monkeypatch.setattr(InlineEngine, "run", later)
    monkeypatch.setattr(InlineEngine, "starts_immediately", False)
    summary = run()
    assert summary["untrained"] == expected["untrained"] and summary["knn"] == expected["knn"]


def test_a_client_that_sees_other_images_than_the_server_fails(simulated):
    def swapped(population):
        first, second, *others = population.parts.items()
        parts = dict([(first[0], second[1]), (second[0], first[1]), *others])
        return replace(population, parts=parts)

    with pytest.raises(FederationError, match="0 of 4 clients answered well.* images on .* others"):
        simulated("swapped", swapped)[1]()


def test_how_long_it_takes_is_said_before_anything_is_evaluated(simulated, monkeypatch):
    said = []
    monkeypatch.setattr(simulation, "core_seconds", lambda config, population: 7200.0)
    monkeypatch.setattr(Watched, "message", lambda self, text: said.append(text))
    monkeypatch.setattr(Watched, "images_evaluated", lambda *_: said.append("evaluates"))
    simulated("long")[1]()
    estimate = next(i for i, line in enumerate(said) if line.startswith("training takes about 2 h"))
    assert estimate < said.index("evaluates")


def test_a_run_that_is_to_end_evaluates_no_further(simulated, monkeypatch):
    _, run = simulated("stopped")
    at_once = InlineEngine.run

    def stopped(self, serve, clients):
        self.is_over.set()
        return at_once(self, serve, clients)

    monkeypatch.setattr(InlineEngine, "run", stopped)
    with pytest.raises(FederationError, match="the run was stopped"):
        run()


@pytest.mark.parametrize(
    ("option", "clients", "warns"),
    [
        ("model.norm=batch", 40, True),  # 3 images each
        ("model.norm=batch", 30, False),
        ("model.norm=group", 40, False),
        ("model.batch_norm=frozen", 40, False),
        ("federation.max_update=null", 40, False),
    ],
)
def test_clients_with_too_few_images_for_batch_norm_are_counted(tiny, option, clients, warns):
    options = ["partition=iid", "model.norm=batch", option, f"federation.clients={clients}"]
    config, lines = tiny(*options), []
    progress = Progress(1)
    progress.message = lines.append
    population = load_population(config)
    simulation._announce(config, population, config.engine.build(config), progress)
    says = "WARNING: 40 of 40 clients have fewer than 4 images"
    assert [line for line in lines if "WARNING" in line and line.startswith(says)] == (
        [lines[-1]] if warns else []
    )
