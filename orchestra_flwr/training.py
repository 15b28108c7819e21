"""The one local training loop; it knows methods but neither Flower nor the network."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestra_flwr.config import AugmentationConfig, ConfigError, TrainingConfig
from orchestra_flwr.data import augment, epoch_batches
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
    contribute: bool = True,
) -> LocalResult:
    """Trains a method on one client's images for the round's local epochs (Algorithm 1).

    Args:
        method: changed in place; on the images' device.
        images: (n, C, H, W) uint8, n >= 1.
        training: epochs, batch size, optimizer and precision.
        augmentation: limits that the images set on augmentations.
        seed: the client's randomness.
        contribute: false: the method makes nothing for the server.

    Raises:
        TrainingError: the loss is not finite at the end of the round.
    """
    with passes_in(training.precision, method, images.device.type):
        method.train()
        method.start_round()
        parameters = [p for p in method.parameters() if p.requires_grad]
        optimizer = SGD(parameters, training.lr, training.momentum, training.weight_decay)
        totals: dict[str, Tensor] = {}
        steps = 0
        epochs = training.local_epochs
        for batch in _batches(method, images, training, augmentation, seed, epochs=epochs):
            parts = method.loss(batch)
            torch.stack(list(parts.values())).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps += 1
            for name, part in parts.items():
                totals[name] = totals.get(name, 0.0) + part.detach()
        losses = {name: float(total) / steps for name, total in totals.items()}
        for name, value in losses.items():
            if not math.isfinite(value):
                raise TrainingError(f"the {name} loss is {value}; a lower training.lr may help")
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

    Arguments as in :func:`train_round`; the method's shared state is left bit-identical.
    """
    with passes_in(training.precision, method, images.device.type):
        method.train()
        method.start_round()
        for batch in _batches(method, images, training, augmentation, seed, epochs=1):
            method.observe(batch)
        return LocalResult({}, 0, _contribution(method, images, seed, contribute))


def _contribution(
    method: Method, images: Tensor, seed: ClientSeed, contribute: bool
) -> Contribution:
    return method.end_round(images, seed) if contribute else method.no_contribution()


def _batches(
    method: Method,
    images: Tensor,
    training: TrainingConfig,
    augmentation: AugmentationConfig,
    seed: ClientSeed,
    *,
    epochs: int,
) -> Iterator[Batch]:
    recipes = [recipe.limited(augmentation) for recipe in method.recipes()]
    shuffle = seed.generator("shuffle")
    draw = seed.generator("augment", images.device)
    for _ in range(epochs):
        for chosen in epoch_batches(len(images), training.batch_size, shuffle):
            rows = chosen.to(images.device)
            views = augment(images[rows], recipes, draw)
            yield Batch(rows, tuple(normalise(v) for v in views.images), views.rotations)


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


def return_freed_memory() -> None:
    """Gives freed memory back: to the system (glibc keeps it) and to a GPU's other processes.

    glibc keeps about as much as a step's activations, and cannot use it for large arrays.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


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
