"""Features of images as they are: no augmentation, no gradients, evaluation mode."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from orchestra_flwr.config import Normalisation, Precision
from orchestra_flwr.console.image_count import OnProgress, no_progress
from orchestra_flwr.models.normalisation import normalise
from orchestra_flwr.models.precision import passes_in
from orchestra_flwr.process_memory import keep_freed_memory

# Of a batch on a CPU: 256 images of 64 x 64 pixels, 20 of 224 x 224. More do not fit its caches: on
# 256 images of 224 x 224 EfficientNet-Lite0 takes 1.5 times as long and eleven times the memory,
# ResNet-18 1.2 and nine times (benchmarks/backbones.py features).
MAX_PIXELS = 2**20


def extract_features(
    encoder: nn.Module,
    images: Tensor,
    batch_size: int,
    *,
    by: Normalisation | None = None,
    precision: Precision = "float32",
    on_progress: OnProgress = no_progress,
) -> Tensor:
    """Features of all images, in their order, without augmentation or gradients.

    The encoder works in evaluation mode (its running statistics stay as they are) and gets back
    the mode that each of its modules had. Memory that it frees stays with this process, until
    :func:`~orchestra_flwr.process_memory.return_freed_memory`.

    Args:
        encoder: maps images (B, C, H, W) to features (B, dim).
        images: (N, C, H, W) uint8, on any device.
        batch_size: most images at once.
        by: how they are normalised for a backbone; None: the encoder takes uint8 images.
        on_progress: called after each batch with the images done and their total.

    Returns:
        (N, dim) float32 on the encoder's device.

    Raises:
        ValueError: there are no images.
    """
    if len(images) == 0:
        raise ValueError("no images to extract features from")
    device = device_of(encoder)
    keep_freed_memory()
    batches: list[Tensor] = []
    with evaluation_mode(encoder), torch.inference_mode(), passes_in(precision, device.type):
        done = 0
        for batch in image_batches(images, batch_size, device):
            pixels = batch.to(device)
            pixels = pixels if by is None else normalise(pixels.float() / 255, by)
            batches.append(encoder(pixels).float())
            done += len(batch)
            on_progress(done, len(images))
    # Outside of inference mode cat makes an ordinary tensor, which autograd may use.
    return torch.cat(batches)


def image_batches(images: Tensor, batch_size: int, device: torch.device) -> tuple[Tensor, ...]:
    """Images in batches that a device processes quickly, in their order.

    Args:
        images: (N, C, H, W).
        batch_size: most images of a batch.
        device: of the network.
    """
    if device.type == "cpu":
        height, width = images.shape[-2:]
        batch_size = min(batch_size, max(1, MAX_PIXELS // (height * width)))
    return torch.split(images, batch_size)


def device_of(encoder: nn.Module) -> torch.device:
    """Where an encoder's weights are; the CPU if it has none."""
    first = next(itertools.chain(encoder.parameters(), encoder.buffers()), None)
    return torch.device("cpu") if first is None else first.device


@contextmanager
def evaluation_mode(encoder: nn.Module) -> Iterator[None]:
    """Puts an encoder into evaluation mode; on exit every module gets its own mode back."""
    # Module by module: a frozen part may be in another mode than the rest.
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        yield
    finally:
        # Some networks of timm keep what they made of their weights until they are trained again:
        # it would outlive the weights.
        encoder.train()
        for module, training in modes:
            module.training = training
