"""What is drawn: its distribution against torchvision's `get_params`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms import ColorJitter, GaussianBlur, RandomResizedCrop

from orchestra_flwr.config import AugmentationConfig
from orchestra_flwr.data import SIMCLR, Recipe, augment
from orchestra_flwr.data.augment import PLAIN as PLAIN_VIEW
from orchestra_flwr.data.augment import sample_parameters
from orchestra_flwr.data.transforms import Parameters

DRAWS = 6000
LEAST_P = 1e-4  # fixed seeds: a sound sampler stays above it
FULL = Recipe(solarize_p=0.3, rotate=True)
PLAIN = Recipe(crop_scale=None, flip=0, jitter_p=0, gray_p=0, blur_p=0)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _draw(recipe: Recipe, count: int = DRAWS, size: int = 32) -> Parameters:
    return sample_parameters([recipe], count, size, _generator(7))


def _images(count: int = 16, channels: int = 3, size: int = 32) -> Tensor:
    shape = (count, channels, size, size)
    return torch.randint(0, 256, shape, generator=_generator(3), dtype=torch.uint8)


def _same_distribution(ours: Tensor, theirs: Tensor) -> None:
    """For whole numbers: a chi-square test of the two histograms."""
    values = torch.cat([ours, theirs]).unique()
    table = np.array([[int((side == v).sum()) for v in values] for side in (ours, theirs)])
    common = table.sum(axis=0) >= 20
    table = np.column_stack([table[:, common], table[:, ~common].sum(axis=1) + 1])
    assert stats.chi2_contingency(table).pvalue > LEAST_P


@pytest.mark.parametrize("scale", [(0.5, 1.0), (0.08, 1.0), (1.0, 1.0), (0.9, 1.0)])
@pytest.mark.parametrize("size", [8, pytest.param(32, marks=pytest.mark.slow)])
def test_crops_are_drawn_as_by_torchvision(scale: tuple[float, float], size: int):
    torch.manual_seed(11)
    image = torch.empty(3, size, size)
    ratio = [3 / 4, 4 / 3]
    params = [RandomResizedCrop.get_params(image, list(scale), ratio) for _ in range(DRAWS)]
    theirs = torch.tensor(params)
    ours = _draw(Recipe(crop_scale=scale), size=size).box

    for column in range(4):
        _same_distribution(ours[:, column], theirs[:, column])
    _same_distribution(ours[:, 2] * 100 + ours[:, 3], theirs[:, 2] * 100 + theirs[:, 3])
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= size).all()


def test_a_crop_that_never_fits_takes_the_whole_image():
    """1.0 to 1.0 of the area fits only at a ratio of about 1, so ten tries often fail."""
    whole = (_draw(Recipe(crop_scale=(1.0, 1.0))).box == torch.tensor([0, 0, 32, 32])).all(dim=1)

    assert 0 < whole.sum() <= DRAWS
    assert (_draw(PLAIN).box == torch.tensor([0, 0, 32, 32])).all()


def test_jitter_is_drawn_as_by_torchvision():
    torch.manual_seed(12)
    jitter = ColorJitter(0.4, 0.4, 0.2, 0.1)
    ranges = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    params = [ColorJitter.get_params(*ranges) for _ in range(DRAWS)]
    theirs = torch.tensor([p[1:] for p in params])
    ours = _draw(SIMCLR)

    for operation, (low, high) in enumerate(ranges):
        factors = ours.factors[:, operation]
        assert stats.ks_2samp(factors, theirs[:, operation]).pvalue > LEAST_P
        assert factors.min() >= low
        assert factors.max() <= high
    digits = torch.tensor([1000, 100, 10, 1])
    their_orders = torch.stack([p[0] for p in params])
    assert (ours.order.sort(dim=1).values == torch.arange(4)).all()
    _same_distribution((ours.order * digits).sum(dim=1), (their_orders * digits).sum(dim=1))


def test_strong_jitter_stops_at_zero():
    factors = _draw(Recipe(jitter=(1.5, 0.4, 0.2, 0.1))).factors[:, 0]

    assert factors.min() >= 0
    assert stats.kstest(factors, stats.uniform(0, 2.5).cdf).pvalue > LEAST_P


def test_blur_is_drawn_as_by_torchvision():
    torch.manual_seed(13)
    theirs = [GaussianBlur.get_params(0.1, 2.0) for _ in range(DRAWS)]

    assert stats.ks_2samp(_draw(SIMCLR).sigma, theirs).pvalue > LEAST_P


def test_chances_are_the_recipes():
    drawn = _draw(Recipe(flip=0.5, jitter_p=0.8, gray_p=0.2, blur_p=0.1, solarize_p=0.3))
    chances = {"flip": 0.5, "jitter": 0.8, "gray": 0.2, "blur": 0.1, "solarize": 0.3}

    for name, chance in chances.items():
        happened = int(getattr(drawn, name).sum())
        assert stats.binomtest(happened, DRAWS, chance).pvalue > LEAST_P, name


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_sure_chances_are_sure(chance: float):
    drawn = _draw(Recipe(flip=chance, jitter_p=chance, gray_p=chance, blur_p=chance))

    for name in ("flip", "jitter", "gray", "blur"):
        assert (getattr(drawn, name) == bool(chance)).all()


def test_turns_are_equally_likely():
    assert stats.chisquare(torch.bincount(_draw(FULL).turns, minlength=4)).pvalue > LEAST_P
    assert (_draw(SIMCLR).turns == 0).all()


def test_draws_are_independent():
    """Of each other and of the neighbouring image's."""
    drawn = _draw(FULL)
    columns = [
        *drawn.box.T, drawn.flip, drawn.jitter, *drawn.order.T[:3], *drawn.factors.T, drawn.gray,
        drawn.blur, drawn.sigma, drawn.solarize, drawn.turns,
    ]  # fmt: skip
    table = torch.stack([column.double() for column in columns])
    correlation = torch.corrcoef(torch.cat([table[:, :-1], table[:, 1:]])).abs()
    correlation.fill_diagonal_(0)
    for block in (0, len(columns)):  # parts of one box, and places in one order, do depend
        for dependent in (slice(block, block + 4), slice(block + 6, block + 9)):
            correlation[dependent, dependent] = 0

    assert correlation.max() < 5 / DRAWS**0.5


def test_views_are_those_of_their_recipes():
    images = _images()
    views = augment(images, [PLAIN, Recipe(rotate=True), SIMCLR], _generator())

    assert [tuple(view.shape) for view in views.images] == [tuple(images.shape)] * 3
    assert torch.equal(views.images[0], images.float() / 255)
    assert not torch.equal(views.images[1], views.images[2])
    assert all(view.min() >= 0 and view.max() <= 1 for view in views.images)
    assert views.rotations[0] is None
    assert views.rotations[2] is None
    assert views.rotations[1].shape == (16,)
    assert views.rotations[1].dtype == torch.int64


def test_the_rotation_is_the_one_that_is_named():
    images = _images(64)
    recipe = Recipe(crop_scale=None, flip=0, jitter_p=0, gray_p=0, blur_p=0, rotate=True)
    views = augment(images, [recipe], _generator())

    assert set(views.rotations[0].tolist()) == {0, 1, 2, 3}
    for image, turns, view in zip(
        images, views.rotations[0].tolist(), views.images[0], strict=True
    ):
        assert torch.equal(view, (image.float() / 255).rot90(turns, dims=(1, 2)))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_generator_decides_every_bit(channels: int):
    images = _images(channels=channels)
    torch.manual_seed(0)
    first, again, other = (augment(images, [FULL, SIMCLR], _generator(s)) for s in (1, 1, 2))
    torch.manual_seed(99)  # the global generator plays no part
    later = augment(images, [FULL, SIMCLR], _generator(1))

    for a, b, c, d in zip(first.images, again.images, other.images, later.images, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
        assert torch.equal(a, d)


def test_small_images_and_single_ones_work():
    views = augment(_images(1, channels=1, size=8), [FULL, FULL], _generator())

    assert views.images[1].shape == (1, 1, 8, 8)


def test_limits_of_the_images_bind_every_recipe():
    config = AugmentationConfig(flip=False, crop_min=0.7)

    assert SIMCLR.limited(config) == Recipe(flip=0, crop_scale=(0.7, 1.0))
    assert Recipe(crop_scale=(0.8, 0.9)).limited(config).crop_scale == (0.8, 0.9)
    assert PLAIN.limited(config) == PLAIN
    assert SIMCLR.limited(AugmentationConfig()) == SIMCLR


def test_the_plain_recipe():
    """As the mutual-information paper lists it (ICLR 2024): no blur, crops down to .08."""
    plain = Recipe(solarize_p=0.2, flip=0.1, rotate=True).plain()
    assert plain == replace(PLAIN_VIEW, rotate=True)
    assert Recipe().plain() == PLAIN_VIEW
    assert (PLAIN_VIEW.crop_scale, PLAIN_VIEW.flip) == ((0.08, 1.0), 0.5)
    assert (PLAIN_VIEW.jitter, PLAIN_VIEW.jitter_p) == ((0.4, 0.4, 0.4, 0.1), 0.8)
    assert (PLAIN_VIEW.gray_p, PLAIN_VIEW.blur_p, PLAIN_VIEW.solarize_p) == (0.2, 0, 0)


def test_views_are_drawn_alike_in_any_size_and_of_the_size_that_is_asked_for():
    images = _images(size=32)
    recipes = [replace(PLAIN, crop_scale=(0.08, 1.0), flip=0.5), PLAIN]
    large = augment(images, recipes, _generator())
    small = augment(images, recipes, _generator(), 8)
    for view, same in zip(large.images, small.images, strict=True):
        assert same.shape == (16, 3, 8, 8)
        means = (batch.mean((2, 3)) for batch in (view, same))
        assert torch.allclose(*means, atol=0.02)  # the same cuts


@pytest.mark.parametrize("size", [None, 32, 64])
def test_small_images_are_never_made_larger(size: int | None):
    images = _images(size=32)
    (view,), (same,) = (
        augment(images, [FULL], _generator(), asked).images for asked in (None, size)
    )
    assert torch.equal(view, same)
