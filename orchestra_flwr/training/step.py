"""One step of local training: views of some images, their loss, an update."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from orchestra_flwr.config import Config
from orchestra_flwr.data import Recipe, Views, augment
from orchestra_flwr.methods import Batch, ClipsGradients, Method, sees_labels
from orchestra_flwr.models import normalise
from orchestra_flwr.models.precision import passes_in
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training.learner import Learner
from orchestra_flwr.training.optimizers import Optimizer
from orchestra_flwr.training.schedules import LocalProgress, Schedule, rate_factor


class TrainingError(RuntimeError):
    """Local training that failed on its own, for example with a loss that is not finite."""


class BatchMaker:
    """Makes batches: views of some of a client's images.

    Augmentations and the loss have separate random streams, so all methods get the same views.

    Attributes:
        generators: of the augmentations and of the loss, on the images' device.
    """

    def __init__(
        self,
        method: Method,
        images: Tensor,
        labels: Tensor | None,
        config: Config,
        seed: ClientSeed,
    ) -> None:
        self._images = images
        self._normalisation = config.data.normalise
        self._labels = labels if sees_labels(config) else None
        self._recipes = _recipes(method, config)
        self._view_size = config.data.view_size
        self._augment, self._loss = (
            seed.generator(purpose, images.device) for purpose in ("augment", "loss")
        )
        self.generators = (self._augment, self._loss)

    def __call__(self, rows: Tensor) -> Batch:
        """The batch of the (B,) chosen images."""
        views = self._views(rows)
        return self._batch(rows, views.images, views.rotations)

    def in_steps(self, batches: Sequence[Tensor]) -> Iterable[Tensor]:
        """For each of these (B,) batches of images in turn, the argument of its call."""
        return batches

    def _views(self, rows: Tensor) -> Views:
        """Normalised views of the (n,) chosen images."""
        views = augment(self._images[rows], self._recipes, self._augment, self._view_size)
        normalised = tuple(normalise(view, self._normalisation) for view in views.images)
        return replace(views, images=normalised)

    def _batch(
        self, rows: Tensor, views: tuple[Tensor, ...], rotations: tuple[Tensor | None, ...]
    ) -> Batch:
        labels = None if self._labels is None else self._labels[rows]
        return Batch(rows, views, rotations, self._loss, labels)


def _recipes(method: Method, config: Config) -> list[Recipe]:
    """The augmentation of each view by the method or `method.views`, adapted to the images."""
    recipes: Sequence[Recipe] = method.recipes()
    if config.method.views == "plain":
        recipes = [recipe.plain() for recipe in recipes]
    return [recipe.limited(config.data.augmentation) for recipe in recipes]


class LocalStep:
    """A step of local training: views, passes, loss, update (Algorithm 1, lines 5 to 16).

    It can be captured as a CUDA graph: nothing depends on values, and state is changed in place.

    Args:
        batch_of: makes its batches.
        config: `optimizer`, `schedule` and `training` (`lr`, `precision`).

    Attributes:
        optimizer: newly built.
    """

    def __init__(self, learner: Learner, batch_of: BatchMaker, config: Config) -> None:
        self._learner = learner
        self._batch_of = batch_of
        self._config = config
        self._training = config.training
        self._schedule: Schedule = config.schedule.build()
        self._rounds = config.federation.rounds
        parameters = [p for p in learner.parameters() if p.requires_grad]
        lr: float | Tensor = config.training.lr
        if self._schedule.changes:  # a captured step reads it anew each time
            lr = torch.tensor(lr, dtype=torch.float64, device=parameters[0].device)
        self.optimizer: Optimizer = config.optimizer.build(parameters, lr)
        method = learner.method
        self._gradient_norm = method.gradient_norm if isinstance(method, ClipsGradients) else None
        self._losses: dict[str, Tensor] = {}
        self._measures: dict[str, Tensor] = {}

    def start_epoch(self, round_: int, epoch: int, epochs: int) -> None:
        """Sets the learning rate of a local epoch, counted from 0, of a round with so many."""
        if isinstance(self.optimizer.lr, Tensor):
            progress = LocalProgress(round_, self._rounds, epoch, epochs)
            factor = rate_factor(self._config, self._schedule, progress)
            self.optimizer.lr.fill_(self._training.lr * factor)

    def __call__(self, rows: Tensor) -> None:
        """Trains on the (B,) chosen images."""
        first = not self._losses
        batch = self._batch_of(rows)
        with passes_in(self._training.precision, batch.images.device.type):
            losses, measures = self._learner.loss(batch, measured=first)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        if self._gradient_norm is not None:
            clip_grad_norm_(self.optimizer.parameters, self._gradient_norm)
        self.optimizer.step()
        _add(self._losses, losses)
        if first:
            self._measures = {name: value.detach().clone() for name, value in measures.items()}

    def measures(self) -> dict[str, float]:
        """The measures of the first step, before anything is trained."""
        return {name: float(value) for name, value in self._measures.items()}

    def losses(self, steps: int) -> dict[str, float]:
        """Mean of each part of the loss over the steps so far.

        Raises:
            TrainingError: one is not finite.
        """
        losses = {name: float(total) / steps for name, total in self._losses.items()}
        for name, value in losses.items():
            if not math.isfinite(value):
                raise TrainingError(f"the {name} loss is {value}; a lower training.lr may help")
        return losses


def _add(totals: dict[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Adds scalars to their totals, in place."""
    for name, value in values.items():
        if name in totals:
            totals[name].add_(value.detach())
        else:
            totals[name] = value.detach().clone()
