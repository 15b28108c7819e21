"""Semi-supervised fine-tuning: head and backbone trained with 1 % or 10 % of the labels."""

import logging
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from orchestra_flwr.config import AugmentationConfig
from orchestra_flwr.data.batches import batch_sizes
from orchestra_flwr.evaluation.classifier import Classifier, Schedule, train_supervised
from orchestra_flwr.evaluation.few_labels import labelled_subset, over_seeds

log = logging.getLogger(__name__)

EPOCHS = {0.01: 60, 0.1: 30}  # by the fraction of labels
BATCH_SIZE = 128
LR = 0.05 * BATCH_SIZE / 256
MIN_STEPS = 200  # otherwise a few dozen labels would give only a few dozen steps


def finetune(
    encoder: nn.Module,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    fraction: float,
    seeds: Sequence[int],
    augmentation: AugmentationConfig,
    batch_size: int,
) -> dict[str, Any]:
    """Fine-tunes a copy of an encoder with few labels for each seed; returns :func:`over_seeds`.

    The schedule is SimCLR's (Chen et al. 2020, B.5), fixed in advance, the same for every encoder:
    lr .05 * batch / 256, no warm-up, no weight decay, crops and flips, 60 epochs for 1 % and 30
    for 10 % of the labels. The head starts at zero; BatchNorm is trained unless it is frozen. The
    test images are seen once, after the last step.

    Args:
        encoder: maps images (B, C, H, W) to features; stays as it is.
        train: uint8 images (N, C, H, W) and their labels (N,), of which a fraction is used.
        fraction: of the labels; one of `EPOCHS`.
        seeds: one run each: its own labels, order and augmentations.
        batch_size: of the test images.
    """
    runs = []
    for seed in seeds:
        purpose = f"fine-tuning with {100 * fraction:g} % of the labels, seed {seed}"
        chosen = labelled_subset(train[1], fraction, seed)
        images, labels = (part[chosen.to(part.device)] for part in train)
        model = Classifier.of(encoder, images, labels)
        model.requires_grad_(True).train()
        train_supervised(
            model,
            images,
            labels,
            schedule=schedule_of(fraction, len(chosen)),
            augmentation=augmentation,
            seed=seed,
            purpose=purpose,
        )
        runs.append(model.accuracy(*test, batch_size))
        log.info("%s: %.1f %%", purpose, 100 * runs[-1])
    return over_seeds(runs)


def schedule_of(fraction: float, count: int) -> Schedule:
    """The schedule for a fraction of the labels; `count` is their number."""
    steps = len(batch_sizes(count, BATCH_SIZE))
    return Schedule(max(EPOCHS[fraction], math.ceil(MIN_STEPS / steps)), BATCH_SIZE, LR)
