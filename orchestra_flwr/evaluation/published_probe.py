"""Linear probes with the schedules of published code: the Orchestra paper's, and Dec-SSL's."""

import logging
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from orchestra_flwr.config import AugmentationConfig
from orchestra_flwr.data import PLAIN, augment, epoch_batches
from orchestra_flwr.evaluation.classifier import Classifier, Schedule, train_supervised
from orchestra_flwr.models import device_of
from orchestra_flwr.seeding import torch_generator
from orchestra_flwr.training.optimizers.adam import Adam

log = logging.getLogger(__name__)

PUBLISHED = Schedule(epochs=50, batch_size=256, lr=30.0)
DEC_SSL = Schedule(epochs=50, batch_size=256, lr=1e-3)  # of Adam, constant
DEC_SSL_DECAY = 1e-6
SEED = 0  # of the order of the images and the augmentations


def published_accuracy(
    encoder: nn.Module,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    augmentation: AugmentationConfig,
    batch_size: int,
    schedule: Schedule = PUBLISHED,
) -> float:
    """Test accuracy of a linear head trained by SGD at learning rate 30 on augmented images.

    The frozen encoder computes features anew for every crop and flip. They are neither normalised
    nor standardised, so the accuracy depends on their scale. Unlike in the published code, images
    are shuffled (those of a folder are in the order of the classes), and no image is dropped.

    Args:
        encoder: maps images (B, C, H, W) to features; a copy in evaluation mode is used.
        train: uint8 images (N, C, H, W) and their labels (N,), classes from 0; so is `test`.
        augmentation: limits that the images set.
        batch_size: of the test images.

    Returns:
        A fraction; NaN, with a warning, where the training diverged.
    """
    model = Classifier.of(encoder, *train)
    model.encoder.requires_grad_(False).eval()
    try:
        train_supervised(
            model,
            *train,
            schedule=schedule,
            augmentation=augmentation,
            seed=SEED,
            purpose="published linear probe",
        )
    except ValueError as error:
        log.warning("%s", error)
        return math.nan
    return model.accuracy(*test, batch_size)


def released_accuracy(
    encoder: nn.Module,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    augmentation: AugmentationConfig,
    batch_size: int,
    schedule: Schedule = DEC_SSL,
) -> float:
    """Best test accuracy in 50 epochs of Adam on augmented images, as in Dec-SSL's released code.

    Two things raise this figure: test images choose the epoch, and in the first epoch the encoder
    is in training mode, so that its BatchNorm takes statistics of all clients' images.

    Arguments as in :func:`published_accuracy`; the encoder is not changed.

    Returns:
        A fraction.
    """
    device = device_of(encoder)
    images, labels = (part.to(device) for part in train)
    model = Classifier.of(encoder, images, labels)
    optimizer = Adam(
        Adam.Settings(weight_decay=DEC_SSL_DECAY), model.head.parameters(), schedule.lr
    )
    recipe = PLAIN.limited(augmentation)
    shuffle = torch_generator(SEED, "dec_ssl probe", "shuffle")
    draw = torch_generator(SEED, "dec_ssl probe", "augment", device=device)
    best = 0.0
    for epoch in range(schedule.epochs):
        model.encoder.train(epoch == 0)
        for chosen in epoch_batches(len(images), schedule.batch_size, shuffle):
            rows = chosen.to(device)
            with torch.no_grad():
                features = model.encoder(augment(images[rows], [recipe], draw).images[0])
            cross_entropy(model.head(features), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        best = max(best, model.accuracy(*test, batch_size))
    return best


PUBLISHED_PROBES = {  # by protocol
    "linear_published": published_accuracy,
    "linear_dec_ssl": released_accuracy,
}
