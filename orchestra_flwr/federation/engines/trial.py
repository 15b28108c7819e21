"""Rounds of a client with the images of one batch: what training takes, before a run starts."""

from __future__ import annotations

import time
from collections.abc import Callable

from orchestra_flwr.config import Config
from orchestra_flwr.data.batches import batch_sizes
from orchestra_flwr.federation.population import Population
from orchestra_flwr.methods import Received, Role, labels_for
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, resolve_device, torch_threads, train_round

TIMED_STEPS = 3


def trial_round(config: Config, population: Population) -> Callable[[int], None]:
    """A client that trains so many steps, all on as many images as the run's largest batch holds.

    On the run's device, where all images are as well, as in every worker.
    """
    device = resolve_device(config.device)
    everything = population.dataset.train.images.to(device)
    images = everything[: max(map(max, _epochs(config, population)))]
    labels = labels_for(config, population.dataset.train)
    if labels is not None:
        labels = labels[: len(images)].to(device)
    learner = build_learner(config, images.shape[1]).to(device)
    state = {n: t.clone() for role in Role for n, t in learner.state(role).items()}
    received = Received("0", 0, 1, images, state if learner.needs_received else None)

    def train(steps: int) -> None:
        # One batch an epoch.
        training = config.training.model_copy(update={"local_epochs": steps, "drop_last": False})
        train_round(
            learner,
            images,
            config.model_copy(update={"training": training}),
            ClientSeed(0, 1, "0"),
            labels=labels,
            received=received,
        )

    return train


def seconds_of_training(config: Config, population: Population) -> float:
    """About how long all local training takes, one client after the other, in this process.

    All local steps of the run by the mean of a few that are made for this.
    """
    with torch_threads(config.training.threads):
        train = trial_round(config, population)
        train(1)  # the first step of a process takes longer
        started = time.perf_counter()
        train(TIMED_STEPS)
    step = (time.perf_counter() - started) / TIMED_STEPS
    return step * local_steps(config, population)


def local_steps(config: Config, population: Population) -> float:
    """Optimizer steps of all clients in all rounds, if every cohort is an average one."""
    batches = sum(map(len, _epochs(config, population)))
    epochs = config.training.local_epochs * config.federation.rounds
    return batches * epochs * config.federation.participation


def _epochs(config: Config, population: Population) -> list[list[int]]:
    """The sizes of the batches of an epoch, of each client."""
    size, drop_last = config.training.batch_size, config.training.drop_last
    return [batch_sizes(len(p), size, drop_last=drop_last) for p in population.parts.values()]
