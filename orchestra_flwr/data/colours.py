"""Colour operations of augmentation: each image of a batch has its own, in its own order.

They follow torchvision's operations on one image; see :mod:`orchestra_flwr.data.transforms`.
"""

from functools import lru_cache

import torch
from torch import Tensor

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # as numbered in the order of :func:`jitter`
LUMA = (0.2989, 0.587, 0.114)  # of red, green, blue, as in torchvision


def jitter(images: Tensor, mask: Tensor, order: Tensor, factors: Tensor) -> Tensor:
    """Changes brightness, contrast, saturation and hue of each chosen image, in its own order.

    The first three are blends and come in up to three steps before the hue and up to three after
    it, so that the costly hue is computed once. Images are sorted by how many blends come before
    the hue, so that the images of each step are contiguous.

    Args:
        images: float in [0, 1], (N, C, S, S); may be overwritten.
        mask: which are changed, bool, (N,).
        order: a permutation of the four operations, int64, (N, 4).
        factors: strengths by operation, (N, 4).
    """
    position = order.argsort(dim=1)
    if selects_images(images):
        rows, step_rows = _rows_by_hue(mask, position[:, HUE])
    else:
        rows, step_rows = torch.arange(len(mask), device=mask.device), [slice(None)] * (2 * HUE)
    if not len(rows):
        return images
    colours, position, factors = (x.index_select(0, rows) for x in (images, position, factors))
    hue_at = position[:, HUE]
    blends = position[:, :HUE].argsort(dim=1).T.repeat(2, 1)
    steps = torch.arange(HUE, device=images.device)[:, None]
    used = torch.cat([steps < hue_at, steps >= hue_at])
    mixes, to_mean = _mixes(blends, factors.T.gather(0, blends).where(used, 1.0), images.shape[1])
    for step, chosen in enumerate(step_rows):
        if step == HUE:
            colours = _shift_hue(colours, factors[:, HUE])
        _blend_(colours[chosen], mixes[step, chosen], to_mean[step, chosen])
    if len(rows) == len(images):  # all were changed, chosen or not
        colours = torch.where(mask[:, None, None, None], colours, images)
    return images.index_copy_(0, rows, colours)


def selects_images(images: Tensor) -> bool:
    """Whether an operation runs only on the images that it changes, not on the whole batch."""
    return not images.is_cuda  # on a GPU the host would wait for their indices


def _rows_by_hue(mask: Tensor, hue_at: Tensor) -> tuple[Tensor, list[slice]]:
    """The chosen images, sorted by when their hue is changed, and those that each step changes.

    Args:
        mask: bool, (N,).
        hue_at: how many blends come before the hue, int64, (N,).

    Returns:
        Their indices, int64, and slices of these for the three steps before the hue and the three
        after it.
    """
    rows = mask.nonzero().squeeze(1)
    hue_at, by_hue = hue_at.index_select(0, rows).sort()
    earlier = hue_at.bincount(minlength=HUE).cumsum(0)[:HUE].tolist()
    steps = [*(slice(first, None) for first in earlier), *(slice(last) for last in earlier)]
    return rows.index_select(0, by_hue), steps


def _mixes(operations: Tensor, factors: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Blends as a matrix of the colours and a share of the mean gray.

    Brightness blends with black, contrast with the mean gray, saturation with the gray image. A
    factor of exactly 1 changes nothing.

    Args:
        operations: BRIGHTNESS, CONTRAST or SATURATION, (steps, N).
        factors: strengths, (steps, N).

    Returns:
        (steps, N, C, C) and (steps, N, 1, 1).
    """
    factors = factors[:, :, None, None]
    rest = 1 - factors
    to_mean = rest * (operations == CONTRAST)[:, :, None, None]
    to_gray = rest * (operations == SATURATION)[:, :, None, None]
    eye = torch.eye(channels, device=factors.device)
    return factors * eye + to_gray * _luma(channels, factors.device), to_mean


def _blend_(images: Tensor, colours: Tensor, to_mean: Tensor) -> None:
    """Blends images, (N, C, S, S), in place, by a step of :func:`_mixes`."""
    count, channels, size, _ = images.shape
    pixels = images.view(count, channels, size * size)  # never a copy
    gray = pixels.mean(dim=2) @ _luma(channels, images.device)
    mixed = torch.baddbmm(to_mean * gray[:, None, None], colours, pixels)
    torch.clamp(mixed, 0, 1, out=pixels)


def _luma(channels: int, device: torch.device) -> Tensor:
    """The weights of the channels in the gray value, (C,)."""
    return _constant(LUMA if channels == len(LUMA) else (1.0,), device)


def grayscale(images: Tensor) -> Tensor:
    """The gray value in each of three channels, (N, 3, S, S)."""
    luma = _luma(images.shape[1], images.device)
    return torch.einsum("nchw,c->nhw", images, luma)[:, None].repeat(1, 3, 1, 1)


def _shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turns each image's hue by `shift`, (N,), in full turns; gray images stay as they are.

    With value V, chroma C and hue h in sixths of a turn, a channel of a colour in HSV is
    V - C * clamp(min(k, 4 - k), 0, 1), k = (n + h) mod 6, n = 5, 3, 1 for red, green, blue.
    It masks by floats and works in place: on a CPU a `where` costs as much as six such steps.
    """
    if images.shape[1] == 1:
        return images
    red, green, blue = images.tensor_split(3, dim=1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    scale = chroma.clamp(min=torch.finfo(images.dtype).tiny).reciprocal_()
    hue = torch.lerp(  # the sign is 0 where a channel is the largest, else 1
        (blue - red).mul_(scale).add_(2), (red - green).mul_(scale).add_(4), (value - green).sign_()
    )
    hue = torch.lerp((green - blue).mul_(scale), hue, (value - red).sign_())
    sector = _constant((5.0, 3.0, 1.0), images.device)[:, None, None]
    k = hue + (sector + 6 * shift[:, None, None, None])
    k.sub_((k / 6).floor_(), alpha=6)
    k = torch.minimum(k, 4 - k).clamp_(0, 1).mul_(chroma)
    return torch.sub(value, k, out=k)


@lru_cache(maxsize=32)
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A few numbers, copied to the device once: the host would wait for every copy."""
    return torch.tensor(values, device=device)
