"""Simulated federations: all images are here, and an engine runs the clients."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from flwr.serverapp import Grid

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.console.text import counted
from orchestra_flwr.data import Dataset
from orchestra_flwr.federation.aggregations import held_memory
from orchestra_flwr.federation.attacks import try_attack
from orchestra_flwr.federation.engines import Engine
from orchestra_flwr.federation.engines.trial_step import core_seconds
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.population import (
    Population,
    check_before_images,
    check_listing,
    check_population,
    evaluation_dataset,
    load_population,
)
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.federation.server.loop import FederationRun
from orchestra_flwr.federation.server.members import SimulatedMembers
from orchestra_flwr.federation.server.run_encoders import check_kept
from orchestra_flwr.federation.split_record import check_split, recorded_split
from orchestra_flwr.methods import Role
from orchestra_flwr.methods.labels import classes_of, sees_labels, with_class_names
from orchestra_flwr.models import BatchNormPolicy
from orchestra_flwr.reporting import Progress, RunFolder, check_trackers
from orchestra_flwr.reporting.run_estimate import first_estimate
from orchestra_flwr.training import build_learner, check_model, resolve_device, starting_learner

ENOUGH_IMAGES = 4  # of a client, so that an honest update is hardly ever dropped


@contextmanager
def prepared(config: Config) -> Iterator[Callable[[RunFolder, Progress], dict[str, Any]]]:
    """Checks all that can be checked before a run folder is made; yields what runs the federation.

    Meanwhile the engine starts what it needs; all of it ends with the block.

    Raises:
        ConfigError: resources, images or labels that are not there, a run folder that cannot be
            used, other images than a resumed run began with, or a model that cannot be built.
    """
    engine = check_resources(config)
    RunFolder.check(config)
    check_before_images(config)
    engine.begin()  # while images are decoded
    try:
        named, population = load_checked(config)
        yield lambda folder, progress: simulate(named, population, folder, progress, engine)
    finally:
        engine.end()


def load_checked(config: Config) -> tuple[Config, Population]:
    """The images of all clients, and the configuration with the names of their classes.

    Raises:
        ConfigError: images or labels that are not there, other images than a resumed run began
            with, or a model that cannot be built; what needs no images is checked before they load.
    """
    classes_known = not sees_labels(config) or classes_of(config) is not None
    if classes_known:
        check_model(config, config.data.channels, begun=config.resume is not None)
        _check_states(config)
    population = load_population(config, partial(_check_listing, config))
    check_split(config, population)
    named = with_class_names(config, population.dataset.train.classes)
    check_population(named, population)
    check_kept(named, population.dataset)
    if not classes_known:
        check_model(named, named.data.channels, begun=config.resume is not None)
        _check_states(named)
    return named, population


def _check_states(config: Config) -> None:
    """Refuses an aggregation that holds more than this machine's memory, and a faulty attack.

    Raises:
        ConfigError: as :func:`held_memory` and :func:`try_attack`.
    """
    if config.aggregation.plugin.holds_results or config.attack.is_users:
        learner = build_learner(config, config.data.channels)
        shared = Schemas.of(learner, config).shared
        if config.attack.is_users:
            try_attack(config, shared.pack(learner.state(Role.SHARED)))
        try:
            held_memory(config, shared.size, config.federation.clients)
        except FederationError as error:
            raise ConfigError(str(error)) from None


def _check_listing(config: Config, dataset: Dataset) -> None:
    check_listing(config, dataset)
    check_kept(config, dataset)


def simulate(
    config: Config, population: Population, folder: RunFolder, progress: Progress, engine: Engine
) -> dict[str, Any]:
    """Runs the federation.

    Args:
        engine: that of the configuration, which has begun.

    Returns:
        The summary, as it stands in `summary.json`.

    Raises:
        ConfigError: resources that this machine does not have.
        FederationError: the run could not be completed, or the engine does not return its summary.
    """
    engine.message = progress.message
    _announce(config, population, engine, progress)
    trial = core_seconds(config, population) if config.resume is None else None
    images = evaluation_dataset(config, population)
    evaluator = Evaluator(config, images, progress.images_evaluated, engine.is_over)
    starting = ExitStack()

    def serve(grid: Grid, workers: int) -> dict[str, Any]:
        members = SimulatedMembers(grid, population.parts, population.split)
        starting.close()
        progress.message(f"clients at the same time: {workers}")
        if trial is not None and (line := first_estimate(config, trial, workers)):
            progress.message(line)
        return FederationRun(
            grid,
            config,
            members,
            evaluator=evaluator,
            folder=folder,
            progress=progress,
            workers=workers,
        ).run()

    with (
        recorded_split(config, population, folder),
        _first_evaluation(config, engine, evaluator),
        starting,
    ):
        starting.enter_context(
            progress.phase(f"starting the workers (engine={config.engine.name})")
        )
        summary: Any = engine.run(serve, len(population.parts))
    if not isinstance(summary, dict):  # an engine may be of a user's package
        raise FederationError(
            f"engine={config.engine.name}: {type(engine).__name__}.run must return what serve "
            f"returned, and returned {summary!r:.80}"
        )
    return summary


def _first_evaluation(
    config: Config, engine: Engine, evaluator: Evaluator
) -> AbstractContextManager[None]:
    """Evaluates the untrained encoder while an engine starts that takes a while."""
    if engine.starts_immediately or config.resume is not None:
        return nullcontext()
    return evaluator.beside(starting_learner(config, config.data.channels).method)


def _announce(config: Config, population: Population, engine: Engine, progress: Progress) -> None:
    """What is about to run, for a person."""
    dataset, federation = population.dataset, config.federation
    images = f"{len(dataset.train):,} training"
    if dataset.test is not None:
        images += f" and {len(dataset.test):,} test"
    classes = dataset.train.classes
    of = f" of {len(classes):,} class{'es' * (len(classes) > 1)}" if classes else ""
    remote = engine.is_remote(engine.settings)
    device = config.device if remote else resolve_device(config.device)
    progress.message(
        f"method={config.method.name} data={config.data.name}: {images} images{of}, "
        f"{counted(len(population.parts), 'client')}, {counted(federation.rounds, 'round')}"
    )
    progress.message(f"device: {device}, engine={config.engine.name}")
    if engine.remark:
        progress.message(engine.remark)
    if warning := _few_images_warning(config, [*map(len, population.parts.values())]):
        progress.message(warning)


def _few_images_warning(config: Config, sizes: Sequence[int]) -> str | None:
    """A line where honest clients may send updates that are implausible; None where not.

    The variance of so few activations can be near 0, and BatchNorm divides by it.

    Args:
        sizes: how many images each client has.
    """
    norms, few = BatchNormPolicy.of(config), sum(size < ENOUGH_IMAGES for size in sizes)
    bounded = config.federation.max_update is not None and config.privacy.clip is None
    if not few or not bounded or not norms.in_backbone or norms.name == "frozen":
        return None
    return (
        f"WARNING: {few:,} of {counted(len(sizes), 'client')} have fewer than {ENOUGH_IMAGES} "
        "images, too few for BatchNorm: updates may be so large that they are dropped; fewer "
        "federation.clients have more images each, and model.norm=group has no BatchNorm"
    )


def check_resources(config: Config) -> Engine:
    """Refuses, before anything is written, a run for which this machine lacks something.

    Returns:
        The engine, ready to begin.

    Raises:
        ConfigError: a GPU that is not there, or a package that is not installed.
    """
    check_trackers(config)
    engine: Engine = config.engine.build(config)
    engine.check_resources()
    return engine
