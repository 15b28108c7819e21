"""Handwritten digits in other sizes, places, angles and strengths; nothing is downloaded."""

import numpy as np
import torch
from PIL import Image

from orchestra_flwr.data.images import ImageSet
from orchestra_flwr.data.sources.digits import Digits

COPIES = 2  # images of one handwritten digit
MIN_SIDE = 0.5  # of the image's side
MAX_TURN = 15.0  # degrees
MIN_STRENGTH = 0.4  # of the digit's own strength
MAX_GROUND = 60  # gray values, of 255
NOISE = 8.0  # standard deviation, gray values


class AffineDigits(Digits):
    """Two images of each of scikit-learn's 1,797 digits, changed at random by a fixed seed.

    Random weights tell the original digits apart as well as trained ones; these digits show what
    training gains. They are made as affNIST (Tieleman, 2013) is made from MNIST: resized, turned
    and moved; the ink is weaker or stronger, the background gray and noisy. Images of one digit are
    all for training or all for testing.
    """

    def drawn(self, digits: ImageSet, rng: np.random.Generator) -> ImageSet:
        """Each digit `COPIES` times, changed at random."""
        grays, size = digits.images.numpy()[:, 0], self.data.image_size
        copies = np.stack([_changed(gray, size, rng) for _ in range(COPIES) for gray in grays])
        labels = None if digits.labels is None else digits.labels.repeat(COPIES)
        return ImageSet(torch.from_numpy(copies)[:, None], labels, digits.classes)


def _changed(digit: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """One digit, uint8 (8, 8), on a noisy background of (size, size)."""
    side = int(rng.integers(round(MIN_SIDE * size), size + 1))
    ink = Image.fromarray(digit).resize((side, side), Image.Resampling.BICUBIC)
    ink = ink.rotate(rng.uniform(-MAX_TURN, MAX_TURN), Image.Resampling.BILINEAR)
    image = rng.normal(rng.uniform(0, MAX_GROUND), NOISE, (size, size))
    top, left = rng.integers(0, size - side + 1, 2)
    image[top : top + side, left : left + side] += np.asarray(ink) * rng.uniform(MIN_STRENGTH, 1)
    return image.round().clip(0, 255).astype(np.uint8)
