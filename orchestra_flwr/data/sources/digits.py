"""scikit-learn's handwritten digits; nothing is downloaded."""

import functools
import gzip
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.data.sources import Source
from orchestra_flwr.data.subset import balanced_subset, limited
from orchestra_flwr.extras import require
from orchestra_flwr.square_image import resize

TEST_SHARE = 0.2
SEED = 0  # of what `affine_digits` draws
HIGHEST_VALUE = 16  # the gray values go from 0 to 16
FILE = "datasets/data/digits.csv.gz"  # of scikit-learn: a row holds 64 gray values and the digit


class Digits(Source):
    """1,797 gray images of 8 x 8 pixels; a class-balanced fifth is held out for testing."""

    channels = 1
    classes = 10
    max_turn = 90.0  # a 6 becomes a 9

    def load(self) -> Dataset:
        """Reads them from the installed scikit-learn."""
        require("data=digits, data=affine_digits", "server", "sklearn")
        grays, labels = _read()
        values = np.round(grays * (255 / HIGHEST_VALUE)).astype(np.uint8)
        names = tuple(map(str, range(self.classes)))
        digits = ImageSet(torch.from_numpy(values)[:, None], torch.from_numpy(labels), names)
        test = balanced_subset(labels, len(labels), int(TEST_SHARE * len(labels)))
        train = np.setdiff1d(np.arange(len(labels)), test)
        rng = np.random.default_rng(SEED)
        train_set, test_set = (
            self.drawn(digits.select(torch.from_numpy(chosen)), rng) for chosen in (train, test)
        )
        return Dataset(
            self.data.name,
            limited(train_set, self.data.train_limit),
            limited(test_set, self.data.test_limit),
        )

    def drawn(self, digits: ImageSet, rng: np.random.Generator) -> ImageSet:
        """Digits of 8 x 8 pixels, resized to `data.image_size`; here nothing is random."""
        return replace(digits, images=resize(digits.images, self.data.image_size))


@functools.cache
def _read() -> tuple[np.ndarray, np.ndarray]:
    """Gray values (N, 8, 8), float64, and labels (N,), int64.

    Reads the file without importing scikit-learn, which takes seconds with its scipy, in every
    worker.
    """
    spec = find_spec("sklearn")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (file := Path(folder) / FILE).is_file():
            with gzip.open(file, "rt") as lines:
                table = np.loadtxt(lines, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # a version that keeps them elsewhere

    digits = load_digits()
    return digits.images, digits.target.astype(np.int64)
