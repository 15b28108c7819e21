"""Handwritten digits in other sizes, places, angles and strengths; nothing is downloaded."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.data.sources.digits import Digits
from orchestra_flwr.data.subset import limited

COPIES = 2  # images of one handwritten digit
SMALLEST = 0.5  # of the image's side
LARGEST_TURN = 15.0  # degrees
WEAKEST = 0.4  # of the digit's own strength
BRIGHTEST_GROUND = 60  # gray values, of 255
NOISE = 8.0  # standard deviation, gray values
SEED = 0


class AffineDigits(Digits):
    """Two images of each of scikit-learn's 1,797 digits, changed at random, always the same way.

    Unlike the digits as they are, which random weights tell apart as well as trained ones, these
    show what training gains. Made as affNIST (Tieleman, 2013) is made of MNIST: resized, turned
    and moved; the ink is weaker or stronger, the ground gray and noisy. Images of one digit are
    all for training or all for testing.
    """

    def load(self) -> Dataset:
        """Draws them from the digits of the installed scikit-learn."""
        plain = self.plain()
        assert plain.test is not None
        rng = np.random.default_rng(SEED)
        size = self.data.image_size
        return Dataset(
            self.data.name,
            limited(_changed(plain.train, size, rng), self.data.train_limit),
            limited(_changed(plain.test, size, rng), self.data.test_limit),
        )


def _changed(digits: ImageSet, size: int, rng: np.random.Generator) -> ImageSet:
    plain = digits.images.numpy()[:, 0]
    drawn = [_drawn(digit, size, rng) for _ in range(COPIES) for digit in plain]
    labels = None if digits.labels is None else digits.labels.repeat(COPIES)
    return ImageSet(torch.from_numpy(np.stack(drawn))[:, None], labels, digits.classes)


def _drawn(digit: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """One digit, uint8 (8, 8), on a noisy ground of (size, size)."""
    side = int(rng.integers(round(SMALLEST * size), size + 1))
    ink = Image.fromarray(digit).resize((side, side), Image.Resampling.BICUBIC)
    ink = ink.rotate(rng.uniform(-LARGEST_TURN, LARGEST_TURN), Image.Resampling.BILINEAR)
    image = rng.normal(rng.uniform(0, BRIGHTEST_GROUND), NOISE, (size, size))
    top, left = rng.integers(0, size - side + 1, 2)
    image[top : top + side, left : left + side] += np.asarray(ink) * rng.uniform(WEAKEST, 1)
    return image.round().clip(0, 255).astype(np.uint8)
