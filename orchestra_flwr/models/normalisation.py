"""How images are scaled before a network sees them (`data.normalise`)."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from orchestra_flwr.config import Normalisation

# Mean and standard deviation of each colour channel, of images in [0, 1]. CIFAR's deviations are
# those that self-supervised code shares (means over the images of each image's own deviation).
STATISTICS: dict[Normalisation, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "half": ((0.5,), (0.5,)),
    "cifar": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


def normalise(images: Tensor, by: Normalisation) -> Tensor:
    """Images (..., C, H, W) in [0, 1] as networks take them: (x - mean) / deviation by channel.

    Args:
        images: of any floating-point type; three channels, except for "half".
        by: "half" scales any images to [-1, 1], "none" leaves them; "cifar" and "imagenet" use the
            statistics of those data sets, "clip" those of that network's images.

    Returns:
        The same shape and type.
    """
    if by == "half":
        return (images * 2).sub_(1)
    # Tensors made while torch.export traces hold no values: cached, they would break later calls.
    statistics = _on.__wrapped__ if torch.compiler.is_compiling() else _on
    mean, deviation = statistics(images.device, images.dtype, by)
    return (images - mean).div_(deviation)


def mean_and_deviation(by: Normalisation, channels: int) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel of images in [0, 1]."""
    mean, deviation = ([*values * channels][:channels] for values in STATISTICS[by])
    return mean, deviation


def nearest_normalisation(mean: Sequence[float], deviation: Sequence[float]) -> Normalisation:
    """The normalisation whose mean and deviation of three channels differ least from these."""

    def distance(by: Normalisation) -> float:
        statistics = [value for values in mean_and_deviation(by, 3) for value in values]
        return sum(abs(a - b) for a, b in zip([*mean, *deviation], statistics, strict=True))

    return min(STATISTICS, key=distance)


@lru_cache
def _on(device: torch.device, dtype: torch.dtype, by: Normalisation) -> tuple[Tensor, Tensor]:
    """Mean and deviation, (C, 1, 1), cached: a step captured as a CUDA graph must not copy them."""
    with torch.inference_mode(False):  # else gradients for images could never pass through them
        mean, deviation = (
            torch.tensor(values, device=device, dtype=dtype).view(-1, 1, 1)
            for values in STATISTICS[by]
        )
    return mean, deviation
