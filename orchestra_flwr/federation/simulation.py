"""Simulated federations: all images are here, and an engine runs the clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.serverapp import Grid

from orchestra_flwr.config import Config
from orchestra_flwr.federation.engines import Engine
from orchestra_flwr.federation.population import (
    Population,
    check_population,
    load_population,
)
from orchestra_flwr.federation.server.loop import run_federation
from orchestra_flwr.federation.server.members import SimulatedMembers
from orchestra_flwr.federation.split_record import record_split
from orchestra_flwr.methods.labels import with_class_names
from orchestra_flwr.reporting import Progress, RunFolder, summary_writer
from orchestra_flwr.training import build_learner, check_memory


def prepared(config: Config) -> Callable[[RunFolder, Progress], dict[str, Any]]:
    """All that can be checked before a run folder is made; the result runs the federation.

    Raises:
        ConfigError: resources, images or labels that are not there, or a model that cannot be
            built.
    """
    check_resources(config)
    population = load_population(config)
    named = with_class_names(config, population.dataset.train.classes)
    check_population(named, population)
    check_memory(named, config.data.channels)
    build_learner(named, config.data.channels)  # what cannot be built is refused here
    return lambda folder, progress: simulate(named, population, folder, progress)


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
    record_split(config, population, folder)

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

    engine: Engine = config.engine.build(config)
    return engine.run(serve, len(population.parts))


def check_resources(config: Config) -> None:
    """Tells what this machine lacks for a run before anything is written.

    Raises:
        ConfigError: a GPU that is not there, or a package that is not installed.
    """
    if config.logging.tensorboard:
        summary_writer()
    engine: Engine = config.engine.build(config)
    engine.check_resources()
