"""Trial steps on this machine before a run, to estimate how long its training will take."""

import time
from contextlib import suppress

import torch

from orchestra_flwr.config import Config
from orchestra_flwr.data import local_epochs
from orchestra_flwr.federation.population import Population
from orchestra_flwr.methods import Received, Role, labels_for
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, resolve_device, torch_threads, train_round
from orchestra_flwr.training.step import TrainingError

# Images of each trial step. The first one is slow and not counted. After it, two images of 224
# pixels take seconds, which is enough; of small images 64 show the pace of a batch.
IMAGES = (2, 2, 16, 64)
ENOUGH = 0.5  # seconds of a step that shows the pace
SHORT = 1e8  # pixels of all images in all epochs; runs with fewer train in minutes


def train_a_batch(config: Config, population: Population, count: int) -> float:
    """Trains one step on the first `count` images; the run's own randomness is not touched.

    Returns:
        Seconds that the round took, without building its learner.
    """
    images = population.dataset.train.images[:count].to(resolve_device(config.device))
    labels = labels_for(config, population.dataset.train)
    learner = build_learner(config, images.shape[1]).to(images.device)
    state = {n: t.clone() for role in Role for n, t in learner.state(role).items()}
    once = config.training.model_copy(
        update={"local_epochs": 1, "min_steps": 1, "drop_last": False}
    )
    began = time.perf_counter()
    train_round(
        learner,
        images,
        config.model_copy(update={"training": once}),
        ClientSeed(0, 1, "0"),
        labels=None if labels is None else labels[:count].to(images.device),
        received=Received("0", 0, 1, images, state if learner.needs_received else None),
    )
    return time.perf_counter() - began


def core_seconds(config: Config, population: Population) -> float | None:
    """Seconds that clients train in all rounds, one after another; None for short runs.

    Also None for a GPU or a cluster, whose pace these steps do not show, and where a step fails:
    the run's clients will say why.
    """
    engine, federation = config.engine, config.federation
    if engine.plugin.is_remote(engine.settings) or resolve_device(config.device).type != "cpu":
        return None
    counts = [len(part) for part in population.parts.values()]
    images = sum(counts)
    in_epochs = sum(count * local_epochs(config.training, count) for count in counts)
    passes = in_epochs * federation.participation * federation.rounds
    if passes * config.data.view_size**2 < SHORT:
        return None
    with (
        suppress(TrainingError),
        torch_threads(config.training.threads),
        torch.random.fork_rng(devices=[]),
    ):
        for position, most in enumerate(IMAGES):
            count = min(most, len(population.dataset.train))
            first = train_a_batch(config, population, count)
            seconds = train_a_batch(config, population, count)
            if position and seconds > ENOUGH:
                break
        once = max(first - seconds, 0)  # a teacher describes each image once
        return (seconds * passes + once * images) / count
    return None
