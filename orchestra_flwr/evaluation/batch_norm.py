"""BatchNorm for a model whose own was never trained, as where norms stay with the clients."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from orchestra_flwr.config import Normalisation
from orchestra_flwr.console.image_count import OnProgress, no_progress
from orchestra_flwr.evaluation.features import device_of
from orchestra_flwr.models import Backbone, normalise


@torch.no_grad()
def recalibrated(
    backbone: Backbone,
    images: Tensor,
    batch_size: int,
    by: Normalisation,
    on_progress: OnProgress = no_progress,
) -> Backbone:
    """A copy of a backbone with BatchNorm statistics of these images.

    One pass over the images as they are, in an order that is always the same and mixes classes.
    These often come one after the other, and within one there is less variance. Each norm takes
    the mean over the batches of what it sees there, while the norms before it normalise by the
    batch. Weights and biases of the norms stay as they are.

    Args:
        backbone: maps normalised images (B, C, H, W) to features; not changed.
        images: (N, C, H, W) uint8, N >= 2, on any device.
        batch_size: images at once, at most, but never fewer than two; batches differ in size by one
            image at most, so that all images count (nearly) the same.
        by: how they are normalised, `data.normalise`.
        on_progress: called after each batch with how many images are done, and of how many.

    Returns:
        The copy, on the same device, its modules in the modes that they had.

    Raises:
        ValueError: fewer than two images, which have no variance.
    """
    if len(images) < 2:
        raise ValueError(f"{len(images)} images: BatchNorm's statistics need at least 2")
    device = device_of(backbone)
    result = copy.deepcopy(backbone)
    modes = [(module, module.training) for module in result.modules()]
    norms = [module for module in result.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    result.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a mean over all batches, each of the same weight
        norm.train()
    batches = max(1, min(math.ceil(len(images) / batch_size), len(images) // 2))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    done = 0
    for chosen in torch.tensor_split(order.to(images.device), batches):
        result(normalise(images[chosen].to(device).float() / 255, by))
        done += len(chosen)
        on_progress(done, len(images))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    for module, training in modes:
        module.training = training
    return result
