"""The one local training loop; it knows methods but neither Flower nor the network."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestra_flwr.config import AugmentationConfig, ConfigError, TrainingConfig
from orchestra_flwr.data import augment, epoch_batches
from orchestra_flwr.graph import CapturedStep
from orchestra_flwr.methods import Batch, Contribution, Method
from orchestra_flwr.models import normalise
from orchestra_flwr.optimizer import SGD
from orchestra_flwr.precision import passes_in
from orchestra_flwr.seeding import ClientSeed


class TrainingError(RuntimeError):
    """Local training that failed on its own, for example with a loss that is not finite."""


@dataclass(frozen=True)
class LocalResult:
    """What one client did in one round.

    Attributes:
        losses: mean of each part of the loss over the steps; empty if nothing was trained.
        steps: optimizer steps.
        contribution: what the method gives the server.
    """

    losses: dict[str, float]
    steps: int
    contribution: Contribution


def train_round(
    method: Method,
    images: Tensor,
    training: TrainingConfig,
    augmentation: AugmentationConfig,
    seed: ClientSeed,
    *,
    labels: Tensor | None = None,
    contribute: bool = True,
) -> LocalResult:
    """Trains a method on one client's images for the round's local epochs (Algorithm 1).

    Args:
        method: changed in place; on the images' device.
        images: (n, C, H, W) uint8, n >= 1.
        training: epochs, batch size, optimizer and precision.
        augmentation: limits that the images set on augmentations.
        seed: the client's randomness.
        labels: (n,) int64 classes of the images, for methods that need them; no other sees them.
        contribute: false: the method makes nothing for the server.

    Raises:
        TrainingError: the loss is not finite at the end of the round.
        ValueError: the method needs labels and there are none.
    """
    if method.needs_labels and labels is None:
        raise ValueError("the method learns from labels, and there are none")
    with passes_in(training.precision, method, images.device.type):
        method.train()
        method.start_round()
        batch_of = BatchMaker(method, images, labels, augmentation, seed)
        step = LocalStep(method, batch_of, training)
        take: Callable[[Tensor], None] = step
        if training.cuda_graphs and images.is_cuda:
            take = CapturedStep(step, training.batch_size, images.device, [batch_of.draw])
        steps = 0
        for rows in _epochs(images, training, seed, training.local_epochs):
            take(rows)
            steps += 1
        losses = step.losses(steps)
        return LocalResult(losses, steps, _contribution(method, images, seed, contribute))


def observe_round(
    method: Method,
    images: Tensor,
    training: TrainingConfig,
    augmentation: AugmentationConfig,
    seed: ClientSeed,
    *,
    contribute: bool = True,
) -> LocalResult:
    """The first round: nothing is trained, the method only looks at each image once.

    Arguments as in :func:`train_round`, but no labels. The method's shared state is left
    bit-identical.
    """
    with passes_in(training.precision, method, images.device.type):
        method.train()
        method.start_round()
        batch_of = BatchMaker(method, images, None, augmentation, seed)
        for rows in _epochs(images, training, seed, epochs=1):
            method.observe(batch_of(rows))
        return LocalResult({}, 0, _contribution(method, images, seed, contribute))


class BatchMaker:
    """Makes a method's views of some of a client's images.

    Attributes:
        draw: the generator of all augmentation, on the images' device.
    """

    def __init__(
        self,
        method: Method,
        images: Tensor,
        labels: Tensor | None,
        augmentation: AugmentationConfig,
        seed: ClientSeed,
    ) -> None:
        self._images = images
        self._labels = labels if method.needs_labels else None
        self._recipes = [recipe.limited(augmentation) for recipe in method.recipes()]
        self.draw = seed.generator("augment", images.device)

    def __call__(self, rows: Tensor) -> Batch:
        """The batch of the (B,) chosen images."""
        views = augment(self._images[rows], self._recipes, self.draw)
        normalised = tuple(normalise(view) for view in views.images)
        labels = None if self._labels is None else self._labels[rows]
        return Batch(rows, normalised, views.rotations, labels)


class LocalStep:
    """A step of local training: views, passes, loss, update (Algorithm 1, lines 5 to 16).

    It decides nothing by values and changes what it keeps in place, so that it can be captured as
    a graph.

    Args:
        method: changed in place.
        batch_of: makes its batches.
        training: the optimizer's settings.
    """

    def __init__(self, method: Method, batch_of: BatchMaker, training: TrainingConfig) -> None:
        self._method = method
        self._batch_of = batch_of
        parameters = [p for p in method.parameters() if p.requires_grad]
        self._optimizer = SGD(parameters, training.lr, training.momentum, training.weight_decay)
        self._totals: dict[str, Tensor] = {}

    def __call__(self, rows: Tensor) -> None:
        """Trains on the (B,) chosen images."""
        parts = self._method.loss(self._batch_of(rows))
        torch.stack(list(parts.values())).sum().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        for name, part in parts.items():
            if name in self._totals:
                self._totals[name].add_(part.detach())
            else:
                self._totals[name] = part.detach().clone()

    def losses(self, steps: int) -> dict[str, float]:
        """Mean of each part of the loss over the steps so far.

        Raises:
            TrainingError: one is not finite.
        """
        losses = {name: float(total) / steps for name, total in self._totals.items()}
        for name, value in losses.items():
            if not math.isfinite(value):
                raise TrainingError(f"the {name} loss is {value}; a lower training.lr may help")
        return losses


def _contribution(
    method: Method, images: Tensor, seed: ClientSeed, contribute: bool
) -> Contribution:
    return method.end_round(images, seed) if contribute else method.no_contribution()


def _epochs(
    images: Tensor, training: TrainingConfig, seed: ClientSeed, epochs: int
) -> Iterator[Tensor]:
    """The rows of each batch, on the images' device."""
    shuffle = seed.generator("shuffle")
    for _ in range(epochs):
        for chosen in epoch_batches(
            len(images), training.batch_size, shuffle, drop_last=training.drop_last
        ):
            yield chosen.to(images.device)


@contextmanager
def torch_threads(count: int | None = None) -> Iterator[None]:
    """Runs a block with so many CPU threads (None: all that this process may use).

    The number of threads decides the order in which floats are added: a client always computes
    with `training.threads`, so that its bits do not depend on the engine that runs it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count or usable_cpus())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cpus() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resolve_device(name: str) -> torch.device:
    """The device that `device=` names; auto takes a GPU where one is visible.

    Raises:
        ConfigError: a GPU is asked for that is not there.
    """
    visible = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda" if visible else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= visible:
        raise ConfigError(f"device={name}: {visible} GPUs are visible here (device=auto or cpu)")
    return device
