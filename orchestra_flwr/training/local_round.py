"""A client's round: the local training loop of all methods, without Flower."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from orchestra_flwr.config import Config, TrainingConfig
from orchestra_flwr.data import epoch_batches, local_epochs
from orchestra_flwr.methods import Contributes, Received, release_of, sees_labels
from orchestra_flwr.models.batch_norm import without_counters
from orchestra_flwr.models.precision import passes_in
from orchestra_flwr.privacy.release import Contribution
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training.cuda_graph import CapturedStep
from orchestra_flwr.training.learner import Learner
from orchestra_flwr.training.step import BatchMaker, LocalStep
from orchestra_flwr.training.views_ahead import ViewsAhead


@dataclass(frozen=True)
class LocalResult:
    """What one client did in one round."""

    # Mean of each part of the loss over the steps; empty if nothing was trained.
    losses: dict[str, float]
    steps: int  # optimizer steps
    contribution: Contribution  # what the method sends to the server beside its state
    # Of the optimizer after the steps, where clients keep it.
    optimizer_state: Mapping[str, Tensor] = field(default_factory=dict)
    # Recorded in the first step, before anything is trained.
    measures: dict[str, float] = field(default_factory=dict)


def train_round(
    learner: Learner,
    images: Tensor,
    config: Config,
    seed: ClientSeed,
    *,
    labels: Tensor | None = None,
    contribute: bool = True,
    received: Received | None = None,
    optimizer_state: Mapping[str, Tensor] | None = None,
) -> LocalResult:
    """Trains on one client's images for the round's local epochs (Algorithm 1).

    Args:
        learner: changed in place; on the images' device.
        images: (n, C, H, W) uint8, n >= 1.
        seed: the client's randomness.
        labels: (n,) int64 classes of the images, UNLABELLED where none is known; only methods that
            learn from labels see them.
        contribute: false: the contribution has arrays without rows.
        received: what the client knows when the round starts; None: the seed's client and round,
            without the received state.
        optimizer_state: the state from which the optimizer continues; None: it starts anew.

    Raises:
        TrainingError: the loss is not finite at the end of the round.
        ValueError: labels, or the state as received, are needed but missing.
    """
    if not sees_labels(config):
        labels = None
    elif labels is None:
        raise ValueError("the method learns from labels, and there are none")
    received = _received(received, learner.needs_received, images, labels, seed)
    learner.train()
    learner.start_round(received)
    make = ViewsAhead if images.is_cuda else BatchMaker
    batch_of = make(learner.method, images, labels, config, seed)
    step = LocalStep(learner, batch_of, config)
    train_step: Callable[[Tensor], None] = step
    if optimizer_state is not None:
        step.optimizer.load_state(optimizer_state)
    training, steps = config.training, 0
    epochs = local_epochs(training, len(images))
    if training.cuda_graphs and images.is_cuda:
        train_step = CapturedStep(step, batch_of.generators)
    for epoch, batches in enumerate(_epochs(images, training, seed, epochs)):
        step.start_epoch(seed.round, epoch, epochs)
        with without_counters(learner):
            for rows in batch_of.in_steps(batches):
                train_step(rows)
        steps += len(batches)
    losses, measures = step.losses(steps), step.measures()
    learner.end_round()
    contribution = _contribution(learner, images, config, seed, contribute)
    optimizer_state = step.optimizer.state() if training.optimizer_state == "keep" else {}
    return LocalResult(losses, steps, contribution, optimizer_state, measures)


def observe_round(
    learner: Learner,
    images: Tensor,
    config: Config,
    seed: ClientSeed,
    *,
    labels: Tensor | None = None,
    contribute: bool = True,
    received: Received | None = None,
) -> LocalResult:
    """Round 0: nothing is trained, the method observes each image once.

    Arguments as in :func:`train_round`. The shared state does not change; terms take no part.
    """
    method = learner.method
    labels = labels if sees_labels(config) else None
    learner.train()
    learner.start_round(_received(received, False, images, labels, seed), with_terms=False)
    make = ViewsAhead if images.is_cuda else BatchMaker
    batch_of = make(method, images, labels, config, seed)
    for batches in _epochs(images, config.training, seed, epochs=1):
        for rows in batch_of.in_steps(batches):
            batch = batch_of(rows)
            if isinstance(method, Contributes):
                with passes_in(config.training.precision, images.device.type):
                    method.observe(batch)
    return LocalResult({}, 0, _contribution(learner, images, config, seed, contribute))


def _received(
    received: Received | None,
    needs_state: bool,
    images: Tensor,
    labels: Tensor | None,
    seed: ClientSeed,
) -> Received:
    if received is None:
        received = Received(seed.client, None, seed.round, images)
    if needs_state and received.state is None:
        raise ValueError(
            f"client {seed.client}: a term needs the state as the server sent it, and "
            "it is missing (received.state)"
        )
    return received if labels is None else replace(received, labels=labels)


def _contribution(
    learner: Learner, images: Tensor, config: Config, seed: ClientSeed, contribute: bool
) -> Contribution:
    method, release = learner.method, release_of(config)
    if release is None or not isinstance(method, Contributes):
        return Contribution()
    if not (contribute and seed.round >= release.first_round):
        return release.empty()
    with passes_in(config.training.precision, images.device.type):
        contribution = method.end_round(images, seed)
    release.check(contribution)
    return contribution


def _epochs(
    images: Tensor, training: TrainingConfig, seed: ClientSeed, epochs: int
) -> Iterator[list[Tensor]]:
    """The rows of each batch of each epoch, on the images' device."""
    size, drop_last, shuffle = training.batch_size, training.drop_last, seed.generator("shuffle")
    for _ in range(epochs):
        batches = epoch_batches(len(images), size, shuffle, drop_last=drop_last)
        rows = torch.cat(batches).to(images.device)  # one copy; one a step makes the host wait
        yield list(torch.split(rows, [len(batch) for batch in batches]))
