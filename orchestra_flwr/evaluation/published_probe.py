"""The linear probe with the schedule of the published code."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor, nn

from orchestra_flwr.config import AugmentationConfig
from orchestra_flwr.evaluation.classifier import Classifier, Schedule, train_supervised
from orchestra_flwr.evaluation.features import device_of, evaluation_mode, extract_features

log = logging.getLogger(__name__)

PUBLISHED = Schedule(epochs=50, batch_size=256, lr=30.0)


def published_accuracy(
    encoder: nn.Module,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    augmentation: AugmentationConfig,
    batch_size: int,
    seed: int = 0,
    schedule: Schedule = PUBLISHED,
) -> float:
    """Test accuracy of a linear head trained by SGD at learning rate 30 on augmented images.

    Features are taken anew from the frozen encoder for every crop and flip, neither normalised nor
    standardised, so that the accuracy depends on their scale. Unlike in the published code images
    are shuffled (an image folder lies class by class), and no image is dropped.

    Args:
        encoder: maps images (B, C, H, W) to features; in evaluation mode whatever its mode is.
        train: uint8 images (N, C, H, W) and their labels (N,), classes from 0.
        test: the same, (M, C, H, W) and (M,).
        augmentation: limits that the images set.
        batch_size: of the test images.
        seed: of order and augmentations.
        schedule: the published one.

    Returns:
        A fraction; NaN, with a warning, where the training diverged.
    """
    device = device_of(encoder)
    images, labels = (each.to(device) for each in train)
    dim = extract_features(encoder, images[:1], 1).shape[1]
    model = Classifier(encoder, dim, int(labels.max()) + 1).to(device)

    def forward(views: Tensor) -> Tensor:
        with torch.no_grad():
            features = encoder(views)
        logits: Tensor = model.head(features)
        return logits

    try:
        with evaluation_mode(encoder):
            train_supervised(
                forward,
                list(model.head.parameters()),
                images,
                labels,
                schedule=schedule,
                augmentation=augmentation,
                seed=seed,
                purpose="published linear probe",
            )
    except ValueError as error:
        log.warning("%s", error)
        return math.nan
    return model.accuracy(*test, batch_size)
