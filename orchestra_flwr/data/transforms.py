"""The image operations of augmentation, with separate parameters for every image of a batch.

They follow torchvision's operations on one image (bicubic resampling as PIL does it). On a CPU an
operation runs only on the images that it changes. On a GPU it runs on all images and a mask chooses
the results: selecting images would make the host wait for the device. torchvision's own operations
draw once for a whole batch, and kornia's take six times as long (benchmarks/augmentation.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from orchestra_flwr.data import colours
from orchestra_flwr.data.colours import LUMA, grayscale, jitter

CUBIC = -0.5  # the cubic kernel's parameter, as in PIL and antialiased resampling


@dataclass(frozen=True)
class Parameters:
    """What is done to each of N images."""

    box: Tensor  # top, left, height, width of the crop in pixels, int64, (N, 4)
    flip: Tensor  # whether it is flipped left-right, bool, (N,)
    jitter: Tensor  # whether its colours are jittered, bool, (N,)
    order: Tensor  # the four operations of :func:`jitter` in the order of their use, int64, (N, 4)
    factors: Tensor  # brightness, contrast, saturation (1: no change) and hue in turns, (N, 4)
    gray: Tensor  # whether it loses its colours, bool, (N,)
    blur: Tensor  # whether it is blurred, bool, (N,)
    sigma: Tensor  # standard deviation of the blur in pixels, (N,)
    solarize: Tensor  # whether its bright values are inverted, bool, (N,)
    turns: Tensor  # counterclockwise quarter turns, int64, (N,), 0 to 3


def apply(images: Tensor, parameters: Parameters, size: int | None = None) -> Tensor:
    """Crop and flip, jitter, gray, blur, solarize, turn, in this order.

    Args:
        images: uint8, (N, C, S, S), with 1 or 3 channels.
        parameters: one of everything for each image.
        size: height and width V of the views, in pixels; None: S.

    Returns:
        float32 in [0, 1], (N, C, V, V).
    """
    p = parameters
    views = crop_and_flip(images / 255, p.box, p.flip, size)
    views = jitter(views, p.jitter, p.order, p.factors)
    if images.shape[1] == len(LUMA):
        views = _where(p.gray, views, grayscale)
    views = _where(p.blur, views, blur, p.sigma)
    views = _where(p.solarize, views, solarize)
    for turns in (1, 2, 3):
        views = _where(p.turns == turns, views, lambda x, k=turns: x.rot90(k, dims=(2, 3)))
    return views


def crop_and_flip(images: Tensor, box: Tensor, flip: Tensor, size: int | None = None) -> Tensor:
    """Cuts out each image's box, resizes it (bicubic, antialiased), and flips it where asked.

    The resampling is separable: one matrix for each image's columns, then one for its rows, with
    values cut to [0, 1] after each, as PIL does it.

    Args:
        images: float, (N, C, S, S).
        box: top, left, height, width, int64, (N, 4).
        flip: bool, (N,).
        size: height and width V of the result; None: S.

    Returns:
        (N, C, V, V).
    """
    count, channels, side, _ = images.shape
    size = size or side
    start, length = box.T.reshape(2, 2 * count)  # of rows, then of columns
    weights = _resampling(start, length, torch.cat([torch.zeros_like(flip), flip]), side, size)
    rows, columns = weights[:count], weights[count:]
    across = images.reshape(count, channels * side, side).bmm(columns.mT).clamp_(0, 1)
    across = across.view(count, channels, side, size)
    return torch.matmul(rows[:, None], across).clamp_(0, 1)


def _resampling(start: Tensor, length: Tensor, flip: Tensor, side: int, size: int) -> Tensor:
    """Bicubic resampling of `length` of `side` pixels from `start` to `size` pixels, as matrices.

    Returns:
        (N, size, side): row o holds the weights of the input's pixels for output pixel o.
    """
    weights, columns = _taps(side, size, start.device)
    which = length + (side + 1) * flip
    columns = columns.index_select(0, which).add_(start[:, None, None])
    matrices = weights.new_zeros(len(start), size, side)
    return matrices.scatter_add_(2, columns, weights.index_select(0, which))


@lru_cache(maxsize=8)
def _taps(side: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The input pixels of each of `size` output pixels, and their weights, for cuts of any length.

    Pixels outside of the cut are left out and the rest weighted up, as PIL does at an edge. Output
    pixels come from four input pixels, or from more in proportion if a cut shrinks (antialiasing).

    Returns:
        Weights and columns from the start of the cut, (2 * (side + 1), size, taps): by length in
        pixels (none for 0), and once more for images that are flipped.
    """
    length = torch.arange(side + 1)[:, None]
    stretch = (length / size).clamp(min=1)  # of the kernel
    centre = (torch.arange(size) + 0.5) * (length / size) - 0.5  # in pixels of the cut
    first = (centre - 2 * stretch).floor() + 1
    taps = first[:, :, None] + torch.arange(math.ceil(4 * max(1, side / size)))
    distance = (taps - centre[:, :, None]).abs() / stretch[:, :, None]
    weights = _cubic(distance) * (distance <= 2)
    weights = weights * ((taps >= 0) & (taps < length[:, :, None]))
    weights = weights / weights.sum(dim=2, keepdim=True)
    columns = taps.long().clamp_(min=0).minimum((length - 1).clamp(min=0)[:, :, None])
    weights, columns = (torch.cat([x, x.flip(1)]).to(device) for x in (weights, columns))
    return weights, columns


def _cubic(distance: Tensor) -> Tensor:
    """Keys' cubic kernel at a distance from 0 to 2 pixels."""
    near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance**2 + 1
    far = CUBIC * (((distance - 5) * distance + 8) * distance - 4)
    return torch.where(distance < 1, near, far)


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """A Gaussian blur with a 3x3 kernel and mirrored edges.

    Args:
        images: float, (N, C, S, S).
        sigma: standard deviation in pixels, (N,).
    """
    side = torch.exp(-0.5 / sigma.square())
    middle = (1 / (1 + 2 * side))[:, None, None, None]
    side = side[:, None, None, None] * middle
    for dim in (2, 3):
        first, last = images.narrow(dim, 1, 1), images.narrow(dim, images.shape[dim] - 2, 1)
        padded = torch.cat([first, images, last], dim=dim)
        size = images.shape[dim]
        around = padded.narrow(dim, 0, size) + padded.narrow(dim, 2, size)
        images = (middle * images).addcmul_(side, around)
    return images


def solarize(images: Tensor) -> Tensor:
    """Inverts the values from 128 (of 255) upwards; images are float in [0, 1]."""
    return torch.minimum(images, 1 - images)


def _where(
    mask: Tensor, images: Tensor, change: Callable[..., Tensor], *parameters: Tensor
) -> Tensor:
    """`change(images, *parameters)` where `mask`, (N,), holds; `images` may be overwritten."""
    if not colours.selects_images(images):
        return torch.where(mask[:, None, None, None], change(images, *parameters), images)
    index = mask.nonzero().squeeze(1)
    if len(index) == len(images):
        return change(images, *parameters)
    if len(index):
        chosen = [values.index_select(0, index) for values in (images, *parameters)]
        images.index_copy_(0, index, change(*chosen))
    return images
