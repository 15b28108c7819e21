"""Supervised training of a classifier on augmented images, for the protocols that need it."""

import copy
import logging
import math
import time
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from orchestra_flwr.config import AugmentationConfig
from orchestra_flwr.data import Recipe, augment, epoch_batches
from orchestra_flwr.models import device_of, extract_features
from orchestra_flwr.seeding import torch_generator
from orchestra_flwr.training.optimizers.sgd import SGD

log = logging.getLogger(__name__)

MOMENTUM = 0.9
PROGRESS_SECONDS = 15.0
# Crops of half the image or more, and flips: what the published evaluation trains with.
CROP_AND_FLIP = Recipe(crop_scale=(0.5, 1.0), jitter_p=0.0, gray_p=0.0, blur_p=0.0)


@dataclass(frozen=True)
class Schedule:
    """SGD without weight decay; its learning rate falls to 0 along a half cosine, step by step."""

    epochs: int  # passes over the images
    batch_size: int  # images a step
    lr: float  # the first step's learning rate


class Classifier(nn.Module):
    """An encoder and a linear head, which begins at zero.

    Args:
        encoder: maps images (B, C, H, W) to features (B, dim).
        classes: K.
    """

    def __init__(self, encoder: nn.Module, dim: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(dim, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def of(cls, encoder: nn.Module, images: Tensor, labels: Tensor) -> Self:
        """One on a copy of an encoder, on its device, for images (N, C, H, W) uint8 and labels."""
        dim = extract_features(encoder, images[:1], 1).shape[1]
        model = cls(copy.deepcopy(encoder), dim, int(labels.max()) + 1)
        return model.to(device_of(encoder))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K)."""
        logits: Tensor = self.head(self.encoder(images))
        return logits

    def accuracy(self, images: Tensor, labels: Tensor, batch_size: int) -> float:
        """Fraction of all images (N, C, H, W) uint8 whose label (N,) has the largest logit."""
        logits = extract_features(self, images, batch_size)
        return float((logits.argmax(1) == labels.to(logits.device)).double().mean())


def train_supervised(
    model: Classifier,
    images: Tensor,
    labels: Tensor,
    *,
    schedule: Schedule,
    augmentation: AugmentationConfig,
    seed: int,
    purpose: str,
) -> None:
    """Minimises the cross-entropy; the last step's parameters are the result.

    Args:
        model: whose parameters with gradients are trained, in place; its modes stay.
        images: (N, C, H, W) uint8.
        labels: (N,) classes from 0.
        schedule: epochs, batch size and learning rate.
        augmentation: limits that the images set on crops and flips.
        seed: with `purpose` gives the order of the images and the augmentations.
        purpose: also names the work in the log, where it takes long.

    Raises:
        ValueError: the loss is not finite at the end.
    """
    images, labels = (part.to(device_of(model)) for part in (images, labels))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    recipe = CROP_AND_FLIP.limited(augmentation)
    shuffle = torch_generator(seed, purpose, "shuffle")
    draw = torch_generator(seed, purpose, "augment", device=images.device)
    settings = SGD.Settings(momentum=MOMENTUM, weight_decay=0)
    optimizer = SGD(settings, parameters, schedule.lr)
    steps = schedule.epochs * len(epoch_batches(len(images), schedule.batch_size, shuffle))
    step, reported, loss = 0, time.monotonic(), torch.zeros(())
    for epoch in range(schedule.epochs):
        for chosen in epoch_batches(len(images), schedule.batch_size, shuffle):
            rows = chosen.to(images.device)
            views = augment(images[rows], [recipe], draw).images[0]
            optimizer.lr = schedule.lr * (1 + math.cos(math.pi * step / steps)) / 2
            loss = cross_entropy(model(views), labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
        if time.monotonic() - reported > PROGRESS_SECONDS:
            reported = time.monotonic()
            log.info("%s: epoch %d of %d", purpose, epoch + 1, schedule.epochs)
    last = float(loss.detach())
    if not math.isfinite(last):
        raise ValueError(f"{purpose}: the loss is {last}")
