"""Simulated federations: all images are here, and an engine runs the clients."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from flwr.serverapp import Grid

from orchestra_flwr.config import Config
from orchestra_flwr.federation.engines import Engine
from orchestra_flwr.federation.population import Population
from orchestra_flwr.federation.server.loop import run_federation
from orchestra_flwr.federation.server.members import SimulatedMembers
from orchestra_flwr.federation.split_record import record_split
from orchestra_flwr.reporting import Progress, RunFolder, summary_writer
from orchestra_flwr.training import resolve_device


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
    _announce(config, population, progress)
    with progress.phase("recording the split"):
        record_split(config, population, folder)
    starting = ExitStack()

    def serve(grid: Grid, workers: int) -> dict[str, Any]:
        members = SimulatedMembers(grid, list(population.parts))
        starting.close()
        progress.message(f"clients at the same time: {workers}")
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
    with starting:
        starting.enter_context(
            progress.phase(f"starting the workers (engine={config.engine.name})")
        )
        return engine.run(serve, len(population.parts))


def _announce(config: Config, population: Population, progress: Progress) -> None:
    """What is about to run, for a person."""
    dataset, federation = population.dataset, config.federation
    images = f"{len(dataset.train):,} training"
    if dataset.test is not None:
        images += f" and {len(dataset.test):,} test"
    rounds = f"{federation.rounds} round" + "s" * (federation.rounds != 1)
    engine: Engine = config.engine.build(config)
    remote = engine.is_remote(engine.settings)
    device = config.device if remote else resolve_device(config.device)
    progress.message(
        f"method={config.method.name} data={config.data.name}: {images} images, "
        f"{len(population.parts)} clients, {rounds}"
    )
    progress.message(f"device: {device}, engine={config.engine.name}")


def check_resources(config: Config) -> None:
    """Tells what this machine lacks for a run before anything is written.

    Raises:
        ConfigError: a GPU that is not there, or a package that is not installed.
    """
    if config.logging.tensorboard:
        summary_writer()
    engine: Engine = config.engine.build(config)
    engine.check_resources()
