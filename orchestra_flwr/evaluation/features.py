"""Features of a frozen encoder, and the checks that all who evaluate features share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def extract_features(encoder: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    """Features of all images, in their order, without augmentation or gradients.

    The encoder works in evaluation mode (its running statistics stay as they are) and gets back
    the mode that each of its modules had.

    Args:
        encoder: maps uint8 images (B, C, H, W) to features (B, dim).
        images: (N, C, H, W) uint8, on any device.
        batch_size: images at once; the last batch may be smaller.

    Returns:
        (N, dim) float32 on the encoder's device.

    Raises:
        ValueError: there are no images.
    """
    if len(images) == 0:
        raise ValueError("no images to extract features from")
    device = device_of(encoder)
    with evaluation_mode(encoder), torch.inference_mode():
        batches = [encoder(batch.to(device)).float() for batch in torch.split(images, batch_size)]
    # Outside of inference mode cat makes an ordinary tensor, which autograd may use.
    return torch.cat(batches)


def feature_std(features: Tensor) -> float:
    """How spread out features are on the sphere (SimSiam's measure of collapse, Chen & He 2021).

    The standard deviation of each dimension of the L2-normalised features, averaged over the
    dimensions, times sqrt(dim): about 1 for features in all directions, 0 when all are the same.

    Args:
        features: (N, dim).
    """
    normalised = torch.nn.functional.normalize(features.double(), dim=1)
    spread = normalised.std(0, correction=0).mean()
    return float(spread * features.shape[1] ** 0.5)


def check_labelled(name: str, features: Tensor, labels: Tensor) -> None:
    """Refuses what cannot be evaluated.

    Args:
        name: what the features are, for the message.
        features: (N, dim).
        labels: (N,) classes, integers from 0.

    Raises:
        ValueError: shapes do not fit, there is nothing, or a feature is not finite.
    """
    if features.ndim != 2 or labels.shape != features.shape[:1] or len(labels) == 0:
        raise ValueError(
            f"{name}: expected features (N, dim) and labels (N,) with N >= 1, "
            f"not {tuple(features.shape)} and {tuple(labels.shape)}"
        )
    if labels.is_floating_point() or int(labels.min()) < 0:
        raise ValueError(f"{name}: labels must be integers from 0")
    bad = int((~torch.isfinite(features)).any(1).sum())
    if bad:
        raise ValueError(f"{name}: {bad} of {len(features)} feature vectors are not finite")


def device_of(encoder: nn.Module) -> torch.device:
    """Where an encoder's weights are; the CPU if it has none."""
    first = next(itertools.chain(encoder.parameters(), encoder.buffers()), None)
    return torch.device("cpu") if first is None else first.device


@contextmanager
def evaluation_mode(encoder: nn.Module) -> Iterator[None]:
    """Inside the block an encoder is in evaluation mode; then every module has its own again."""
    # Module by module: a frozen part may be in another mode than the rest.
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
