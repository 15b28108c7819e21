"""Random augmentation of whole batches on their device, with parameters for each image.

One view's augmentation is a :class:`Recipe`. All views of a step are drawn and applied as one
batch. The generator is the only source of randomness: the same state gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from orchestra_flwr.config import AugmentationConfig
from orchestra_flwr.data.transforms import Parameters, apply

CROP_RATIO = (3 / 4, 4 / 3)  # of width to height, as in every published recipe
CROP_TRIES = 10  # as in torchvision; if all fail, the whole (square) image is taken


@dataclass(frozen=True)
class Recipe:
    """One view's augmentation; the defaults are SimCLR's for small images.

    In this order: crop and resize, flip, colour jitter, grayscale, blur, solarize, rotation.

    Attributes:
        crop_scale: least and largest area of the crop, as a share of the image; None: no crop.
        flip: probability of a left-right flip.
        jitter: strengths of brightness, contrast, saturation (factors from 1 - s to 1 + s) and
            hue (shift from -s to s turns); the four come in random order.
        jitter_p: probability of the colour jitter.
        gray_p: probability of the loss of colour.
        blur_p: probability of a Gaussian blur with a 3x3 kernel.
        blur_sigma: least and largest standard deviation of the blur, in pixels.
        solarize_p: probability of the inversion of all values from 128 (of 255) upwards.
        rotate: whether the view is turned by 0, 90, 180 or 270 degrees, equally likely.
    """

    crop_scale: tuple[float, float] | None = (0.5, 1.0)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    jitter_p: float = 0.8
    gray_p: float = 0.2
    blur_p: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize_p: float = 0.0
    rotate: bool = False

    def limited(self, config: AugmentationConfig) -> Recipe:
        """This recipe within the limits that the images set: no flip, or no smaller crops."""
        scale = self.crop_scale
        if scale is not None and config.crop_min is not None:
            scale = (max(scale[0], config.crop_min), max(scale[1], config.crop_min))
        return replace(self, crop_scale=scale, flip=self.flip if config.flip else 0.0)

    def plain(self) -> Recipe:
        """`PLAIN` in place of this recipe; its rotation, which the method predicts, stays."""
        return replace(PLAIN, rotate=self.rotate)


SIMCLR = Recipe()
# Without blur and with smaller crops, for both views alike (mutual-information paper, ICLR 2024).
PLAIN = Recipe(crop_scale=(0.08, 1.0), jitter=(0.4, 0.4, 0.4, 0.1), blur_p=0.0)


@dataclass(frozen=True)
class Views:
    """The augmented views of a batch, one for each recipe."""

    images: tuple[Tensor, ...]  # float32 in [0, 1], (B, C, V, V)
    # Quarter turns of the images, int64, (B,), 0 to 3; None where the recipe does not rotate
    rotations: tuple[Tensor | None, ...]


def augment(
    images: Tensor,
    recipes: Sequence[Recipe],
    generator: torch.Generator,
    view_size: int | None = None,
) -> Views:
    """One independent view of every image for each recipe.

    Args:
        images: uint8, (B, C, S, S), with 1 or 3 channels.
        recipes: one for each view.
        generator: on the images' device; the only source of randomness.
        view_size: height and width V of larger images' views; None: S.
    """
    count, size = len(recipes), images.shape[-1]
    parameters = sample_parameters(recipes, len(images), size, generator)
    size = min(size, view_size or size)
    views = apply(images.repeat(count, 1, 1, 1), parameters, size).tensor_split(count)
    turns = parameters.turns.tensor_split(count)
    rotations = [
        turn if recipe.rotate else None for recipe, turn in zip(recipes, turns, strict=True)
    ]
    return Views(tuple(views), tuple(rotations))


def sample_parameters(
    recipes: Sequence[Recipe], batch: int, size: int, generator: torch.Generator
) -> Parameters:
    """Draws the parameters of `batch` views of each recipe, the first recipe's first.

    Args:
        recipes: one for each view.
        size: height and width of the images in pixels.
        generator: its device is the parameters'.
    """
    device = generator.device
    limits = _limits(tuple(recipes), device)
    low, high, spread = (limit.repeat_interleave(batch, dim=0) for limit in limits)
    uniform = torch.rand(len(low), _COLUMNS + 2 * CROP_TRIES, generator=generator, device=device)
    draws, tries = uniform[:, :_COLUMNS], uniform[:, _COLUMNS:]
    values = low + draws * spread
    happens = draws[:, _FLIP : _SOLARIZE + 1] < high[:, _FLIP : _SOLARIZE + 1]
    flip, jitter, gray, blur, solarize = happens.unbind(dim=1)
    return Parameters(
        box=_crop_boxes(
            low[:, _SCALE, None], spread[:, _SCALE, None], tries, draws[:, _TOP : _LEFT + 1], size
        ),
        flip=flip,
        jitter=jitter,
        order=draws[:, _ORDER : _ORDER + 4].argsort(dim=1),
        factors=values[:, _FACTORS : _FACTORS + 4],
        gray=gray,
        blur=blur,
        sigma=values[:, _SIGMA],
        solarize=solarize,
        turns=values[:, _TURNS].long().clamp_(max=3),
    )


# The columns of the uniform draws, and of the limits that scale them.
_FLIP, _SOLARIZE = 0, 4  # the chances: flip, jitter, gray, blur, solarize
_FACTORS = 5
_SIGMA, _TURNS, _SCALE = 9, 10, 11
_TOP, _LEFT = 12, 13
_ORDER = 14
_COLUMNS = 18


@lru_cache(maxsize=32)
def _limits(recipes: tuple[Recipe, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The least and largest value of every column, and their difference, on the device.

    Returns:
        Three (recipes, columns).
    """
    limits = torch.zeros(len(recipes), 2, _COLUMNS)
    limits[:, 1, _TOP:] = 1
    for row, recipe in zip(limits, recipes, strict=True):
        row[1, _FLIP : _SOLARIZE + 1] = torch.tensor(
            [recipe.flip, recipe.jitter_p, recipe.gray_p, recipe.blur_p, recipe.solarize_p]
        )
        strength = torch.tensor(recipe.jitter)
        middle = torch.tensor([1.0, 1.0, 1.0, 0.0])
        row[:, _FACTORS : _FACTORS + 4] = torch.stack([middle - strength, middle + strength])
        row[0, _FACTORS : _FACTORS + 3].clamp_(min=0)
        row[:, _SIGMA] = torch.tensor(recipe.blur_sigma)
        row[1, _TURNS] = 4.0 * recipe.rotate
        # No crop: an area so large that no try fits, so that the whole image is taken.
        row[:, _SCALE] = torch.tensor(recipe.crop_scale or (9.0, 9.0))
    low, high = limits.unbind(dim=1)
    # Copying comes last: no thread sees values that another thread's stream has not made yet.
    return low.to(device), high.to(device), (high - low).to(device)


def _crop_boxes(least: Tensor, spread: Tensor, tries: Tensor, place: Tensor, size: int) -> Tensor:
    """Random boxes as torchvision's RandomResizedCrop draws them for square images.

    Args:
        least: area as a share of the image, (N, 1).
        spread: of the largest area over the least, (N, 1).
        tries: uniform, (N, 2 * CROP_TRIES): the area and the ratio of every try.
        place: uniform, (N, 2).

    Returns:
        Top, left, height, width of each crop: int64, (N, 4).
    """
    area, ratio = tries.chunk(2, dim=1)
    area = (least + area * spread) * size**2
    low, high = math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])
    ratio = torch.exp(low + ratio * (high - low))
    shape = torch.stack([(area / ratio).sqrt(), (area * ratio).sqrt()], dim=2).round()
    fits = ((shape > 0) & (shape <= size)).all(dim=2)
    first = fits.to(torch.uint8).argmax(dim=1)  # the first try that fits, or the first of all
    chosen = shape.gather(1, first.view(-1, 1, 1).expand(-1, 1, 2)).squeeze(1)
    chosen = torch.where(fits.any(dim=1, keepdim=True), chosen, float(size))
    room = size - chosen
    corner = torch.minimum((place * (room + 1)).floor(), room)
    return torch.cat([corner, chosen], dim=1).long()
