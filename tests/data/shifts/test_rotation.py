"""Rotation: which angle, and what it does to the pixels."""

import math

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import ShiftConfig
from orchestra_flwr.data import shift_images
from orchestra_flwr.data.shifts import drawn_variants
from orchestra_flwr.data.shifts.rotation import rotated

INDICES = torch.arange(300, 700)


def _angles(client="4", seed=0, indices=INDICES, **options):
    config = ShiftConfig.model_validate({"name": "rotation", **options})
    return config.build().angles(indices, client, seed)


def _images(size, generator, count=4):
    return torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("size", [8, 32, 33])
@pytest.mark.parametrize("fill", ["black", "reflect"])
def test_quarter_turns_are_exact(size, fill, generator):
    images = _images(size, generator)
    for turns in range(5):
        turned = rotated(images, torch.full((4,), 90.0 * turns), fill)
        assert torch.equal(turned, images.rot90(turns, dims=(2, 3)))


def _slowly(image, degrees, fill):
    """Pixel by pixel: where it comes from, and the four pixels around that place."""
    size = image.shape[-1]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    middle = (size - 1) / 2

    def pixel(channel, row, column):
        inside = 0 <= row < size and 0 <= column < size
        if not inside and fill == "black":
            return 0.0
        row, column = (min(i if i >= 0 else -i - 1, 2 * size - 1 - i) for i in (row, column))
        return float(image[channel, row, column])

    result = torch.zeros_like(image)
    for row in range(size):
        for column in range(size):
            x, up = column - middle, middle - row
            from_x, from_up = cos * x + sin * up, cos * up - sin * x  # turned back
            at_row, at_column = middle - from_up, from_x + middle
            top, left = math.floor(at_row), math.floor(at_column)
            down, right = at_row - top, at_column - left
            for channel in range(len(image)):
                result[channel, row, column] = round(
                    (1 - down) * (1 - right) * pixel(channel, top, left)
                    + (1 - down) * right * pixel(channel, top, left + 1)
                    + down * (1 - right) * pixel(channel, top + 1, left)
                    + down * right * pixel(channel, top + 1, left + 1)
                )
    return result


@pytest.mark.parametrize("fill", ["black", "reflect"])
def test_any_angle_against_a_slow_oracle(fill, generator):
    images, degrees = _images(9, generator), torch.tensor([17.0, 72.0, 200.0, 305.5])
    turned = rotated(images, degrees, fill)
    for image, result, angle in zip(images, turned, degrees.tolist(), strict=True):
        expected = _slowly(image, angle, fill)
        assert (result.int() - expected.int()).abs().max() <= 1  # of 255: the last bit of a sum
        assert (result != expected).float().mean() < 0.02


def test_only_black_betrays_the_angle():
    white = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    assert (rotated(white, torch.tensor([45.0]), "black")[0, :, 0, 0] == 0).all()
    assert (rotated(white, torch.tensor([45.0]), "reflect") == 255).all()


def test_angles_lie_in_the_clients_bins():
    for client in "0123456789":
        angles, bins = _angles(client), drawn_variants(10, 0.1, INDICES, client, 0)
        assert torch.equal(angles.div(36).floor().long(), bins)
        assert len(angles.unique()) == len(INDICES)  # any angle inside of a bin
        for bin_ in bins.unique():
            inside = angles[bins == bin_] / 36 - bin_
            if len(inside) > 100:
                assert abs(inside.mean() - 0.5) < 4 / (12 * len(inside)) ** 0.5
    quarter = _angles(range=90, alpha=1e6)
    assert quarter.max() < 90 and quarter.min() >= 0 and quarter.std() > 20


def test_fixed_angles_are_five_orientations():
    assert _angles(bins=5, fixed=True, alpha=1e6).unique().tolist() == [0, 72, 144, 216, 288]
    assert len(_angles(bins=5, fixed=True, alpha=1e-6).unique()) == 1


def test_an_image_keeps_its_angle(generator):
    config = ShiftConfig.model_validate({"name": "rotation", "alpha": 5})
    images, indices = _images(8, generator, 6), torch.tensor([4, 9, 2, 30, 7, 1])
    before = images.clone()
    shifted = shift_images(config, images, indices, "3", 0)
    assert torch.equal(images, before) and not torch.equal(images, shifted)
    assert torch.equal(shifted, shift_images(config, images, indices, "3", 0))
    order = torch.tensor([5, 2, 0])
    assert torch.equal(shift_images(config, images[order], indices[order], "3", 0), shifted[order])
    for client, seed in (("1", 0), ("3", 1)):
        assert not torch.equal(shift_images(config, images, indices, client, seed), shifted)


def test_digits_are_turned_by_a_quarter_at_most(tiny):
    with pytest.raises(ConfigError) as error:
        tiny("shift=rotation")
    assert str(error.value) == (
        "shift.range=360: must be at most 90 with data=digits, whose images mean something else "
        "when turned further"
    )
    assert tiny("shift=rotation", "shift.range=90").shift.settings.bins == 10
    photographs = tiny("shift=rotation", "data=image_folder", "data.root=x")
    assert photographs.shift.settings.range == 360


@pytest.mark.parametrize("option", ["bins=0", "range=361", "alpha=0", "fill=white"])
def test_options_are_checked(tiny, option):
    with pytest.raises(ConfigError, match=rf"^shift\.{option}: "):
        tiny("shift=rotation", f"shift.{option}")
