"""Simulated federations: `engine=ray` and `engine=inline`."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.data import class_counts
from orchestra_flwr.federation.answers import ran_out_of_memory
from orchestra_flwr.federation.client_app import app as client_app
from orchestra_flwr.federation.grid import StreamingGrid
from orchestra_flwr.federation.inline import InlineGrid
from orchestra_flwr.federation.members import SimulatedMembers
from orchestra_flwr.federation.object_store import Broadcast
from orchestra_flwr.federation.population import Population
from orchestra_flwr.federation.report import FederationError
from orchestra_flwr.federation.resources import available_nodes, ray_backend, worker_count
from orchestra_flwr.federation.server import run_federation
from orchestra_flwr.reporting import Progress, RunFolder, plot_partition, summary_writer
from orchestra_flwr.training import resolve_device

POLL_SECONDS = 0.005  # between two looks for a reply in this process's own memory
MOST_NODES = 100  # of Flower, which looks for messages to each of them ten times a second


def simulate(
    config: Config, population: Population, folder: RunFolder, progress: Progress
) -> dict[str, Any]:
    """Runs the federation by the configuration's engine.

    Returns:
        The summary, as it stands in `summary.json`.

    Raises:
        ConfigError: resources that this machine does not have.
        FederationError: the run could not be completed.
    """
    _plot_split(population, folder)

    def serve(grid: Grid, workers: int) -> dict[str, Any]:
        members = SimulatedMembers(grid, list(population.parts))
        return run_federation(
            grid,
            config,
            members,
            dataset=population.dataset,
            folder=folder,
            progress=progress,
            workers=workers,
        )

    if config.engine == "inline":
        return serve(InlineGrid(client_app), 1)
    backend = ray_backend(config)
    workers = worker_count(
        available_nodes(config),
        backend["client_resources"]["num_cpus"],
        backend["client_resources"]["num_gpus"],
    )
    window = workers + 2  # enough to keep all workers busy, and bounds the memory
    nodes = min(len(population.parts), max(MOST_NODES, window))
    return _run_ray(nodes, backend, window, lambda grid: serve(grid, workers))


def check_resources(config: Config) -> None:
    """Tells what this machine lacks for a run before anything is written.

    Raises:
        ConfigError: a GPU that is not there, or a package that is not installed.
    """
    if config.ray.address is None or config.engine != "ray":
        resolve_device(config.device)
    if config.logging.tensorboard:
        summary_writer()
    if config.engine == "ray":
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "engine=ray: Ray is not installed; pip install 'orchestra-flwr[simulation]', "
                "or use engine=inline"
            )
        ray_backend(config)


def _plot_split(population: Population, folder: RunFolder) -> None:
    train = population.dataset.train
    if train.labels is None:
        counts, names = np.array([[len(part)] for part in population.parts.values()]), ["images"]
    else:
        counts = class_counts(list(population.parts.values()), train.labels, len(train.classes))
        names = list(train.classes)
    plot_partition(counts, names, folder.path / "partition.png")


def _run_ray(
    nodes: int,
    backend: dict[str, Any],
    window: int,
    serve: Callable[[Grid], dict[str, Any]],
) -> dict[str, Any]:
    from flwr.simulation import run_simulation  # takes seconds, which inline runs are spared

    stopped = threading.Event()
    outcome: dict[str, Any] = {}
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            streaming = StreamingGrid(
                grid,
                window,
                stopped.is_set,
                prepare=Broadcast(),
                alone=ran_out_of_memory,
                poll=POLL_SECONDS,
            )
            outcome.update(serve(streaming))
        finally:
            # From here on Ray only tells that it could retry the actors' farewell.
            farewell.enter_context(contextlib.redirect_stdout(io.StringIO()))

    # Flower's log repeats, with tracebacks, what the progress shows and the metrics keep.
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    try:
        with contextlib.ExitStack() as farewell:
            run_simulation(server, client_app, nodes, "ray", backend_config=backend)
    except RuntimeError as error:
        if isinstance(error, FederationError):
            raise
        cause = error.__cause__ or error
        raise FederationError(f"Flower's simulation engine failed: {cause}") from error
    finally:
        stopped.set()  # ends the server's thread if the engine died under it
    return outcome
