"""scikit-learn's handwritten digits; nothing is downloaded."""

from __future__ import annotations

import numpy as np
import torch

from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.data.sources import Source
from orchestra_flwr.data.subset import balanced_subset, limited
from orchestra_flwr.square_image import resize

TEST_SHARE = 0.2
HIGHEST_VALUE = 16  # the gray values go from 0 to 16


class Digits(Source):
    """1,797 gray images of 8 x 8 pixels; a class-balanced fifth is held out for testing."""

    channels = 1
    classes = 10
    largest_turn = 90.0  # a 6 becomes a 9

    def load(self) -> Dataset:
        """Reads them from the installed scikit-learn."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        values = np.round(digits.images * (255 / HIGHEST_VALUE)).astype(np.uint8)
        labels = digits.target.astype(np.int64)
        images = ImageSet(
            resize(torch.from_numpy(values)[:, None], self.data.image_size),
            torch.from_numpy(labels),
            tuple(str(name) for name in digits.target_names),
        )
        test = balanced_subset(labels, len(labels), int(TEST_SHARE * len(labels)))
        train = np.setdiff1d(np.arange(len(labels)), test)
        return Dataset(
            self.data.name,
            limited(images.select(torch.from_numpy(train)), self.data.train_limit),
            limited(images.select(torch.from_numpy(test)), self.data.test_limit),
        )
