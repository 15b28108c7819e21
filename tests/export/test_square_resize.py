"""Resizing inside of a network gives what PIL gives, which made the training images."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from orchestra_flwr.export.square_resize import SquareResize, resize_weights


@pytest.mark.parametrize(("high", "wide", "size"), [(48, 65, 32), (20, 33, 32), (99, 40, 8)])
def test_it_is_pils_fit_to_a_grey_level(high, wide, size):
    """Noise is the worst case: the filter overshoots everywhere, between PIL's passes, too."""
    pixels = np.random.default_rng(0).integers(0, 256, (high, wide, 3), dtype=np.uint8)
    fitted = ImageOps.fit(Image.fromarray(pixels), (size, size), Image.Resampling.BICUBIC)
    expected = torch.from_numpy(np.array(fitted)).permute(2, 0, 1).float()
    resized = SquareResize(size)(torch.from_numpy(pixels).permute(2, 0, 1)[None].float())[0]
    difference = (resized - expected).abs()
    assert difference.max() <= 1.5 and difference.mean() < 0.35


@pytest.mark.parametrize(("high", "wide"), [(64, 28), (40, 20), (28, 64)])
def test_smooth_images_are_pils_whichever_pass_it_makes_first(high, wide):
    """Where nothing overshoots, rows before columns are columns before rows."""
    pixels = np.random.default_rng(0).integers(60, 196, (6, 6, 3), dtype=np.uint8)
    smooth = Image.fromarray(pixels).resize((wide, high), Image.Resampling.BILINEAR)
    expected = ImageOps.fit(smooth, (32, 32), Image.Resampling.BICUBIC)
    images = torch.from_numpy(np.array(smooth)).permute(2, 0, 1)[None].float()
    resized = SquareResize(32)(images)[0].permute(1, 2, 0)
    assert (resized - torch.from_numpy(np.array(expected)).float()).abs().max() <= 1.5


def test_images_of_the_right_size_stay_as_they_are():
    images = torch.randint(0, 256, (2, 3, 32, 32)).float()
    assert torch.equal(SquareResize(32)(images), images)


def test_weights_of_a_pixel_sum_to_one():
    weights = resize_weights(50, 30, 7)
    assert weights.shape == (7, 50)
    assert torch.allclose(weights.sum(1), torch.ones(7))
    assert weights[:, :3].abs().max() == 0  # farther from the middle square than the filter
