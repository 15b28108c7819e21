"""The data sets that `data.name` can name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from orchestra_flwr.config import DataConfig
from orchestra_flwr.data.fit import resize
from orchestra_flwr.data.image_folder import load_image_folder
from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.data.subset import balanced_subset

DIGITS_TEST_SHARE = 0.2
DIGITS_HIGHEST = 16  # the gray values of scikit-learn's digits go from 0 to 16


def load_dataset(config: DataConfig) -> Dataset:
    """Loads the images that the configuration names, the same ones for every run seed.

    Raises:
        ConfigError: the images are missing or cannot be used; one line says what to do.
    """
    loaders: dict[str, Callable[[DataConfig], Dataset]] = {
        "digits": _load_digits,
        "cifar10": _load_cifar,
        "cifar100": _load_cifar,
        "image_folder": load_image_folder,
    }
    return loaders[config.name](config)


def _load_cifar(config: DataConfig) -> Dataset:
    # torchvision takes seconds to import, which workers with other images need not wait for.
    from orchestra_flwr.data.cifar import load_cifar

    return load_cifar(config)


def _load_digits(config: DataConfig) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8x8 gray; a class-balanced fifth is held out."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(np.round(digits.images * (255 / DIGITS_HIGHEST)).astype(np.uint8))
    labels = torch.from_numpy(digits.target.astype(np.int64))
    classes = tuple(str(name) for name in digits.target_names)
    everything = ImageSet(resize(images[:, None], config.image_size), labels, classes)
    held_out = balanced_subset(labels.numpy(), len(labels), int(DIGITS_TEST_SHARE * len(labels)))
    kept = np.setdiff1d(np.arange(len(labels)), held_out)
    return Dataset(
        "digits",
        _limited(everything.select(torch.from_numpy(kept)), config.train_limit),
        _limited(everything.select(torch.from_numpy(held_out)), config.test_limit),
    )


def _limited(images: ImageSet, limit: int | None) -> ImageSet:
    labels = None if images.labels is None else images.labels.numpy()
    return images.select(torch.from_numpy(balanced_subset(labels, len(images), limit)))
