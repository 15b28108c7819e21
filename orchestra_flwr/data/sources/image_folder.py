"""A user's own images: a folder or a zip file, with class folders or without labels."""

from __future__ import annotations

from pathlib import Path

import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data.image_files import FileOptions
from orchestra_flwr.data.image_files.archive import Archive, wrong_root
from orchestra_flwr.data.image_files.class_folders import FileList, arrange
from orchestra_flwr.data.image_files.decoded_cache import cache_dir, cache_key, cached
from orchestra_flwr.data.image_files.decoding import Decoded, decode_files
from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.data.sources import Source


class ImageFolder(Source):
    """The images below `data.root`, whatever their sizes, colour modes and formats."""

    Settings = FileOptions

    @classmethod
    def label(cls, settings: FileOptions) -> str:
        """Two folders have two names."""
        stem = Path(settings.root or "").stem
        return f"image_folder-{stem}" if stem else ""

    def load(self) -> Dataset:
        """Decodes the images, or reads them from the cache.

        The limits choose among the file names, before anything is decoded.

        Raises:
            ConfigError: the root is not given, missing, empty or laid out otherwise, or no image
                can be read.
        """
        name, size = self.data.name, self.data.image_size
        if not self.settings.root:
            raise ConfigError(f"data.root must name a folder or a zip of images for data={name}")
        root = Path(self.settings.root).expanduser()
        with Archive(root) as archive:
            train, test, classes = arrange(root, archive.files())
            train, test = train.limited(self.data.train_limit), test.limited(self.data.test_limit)
            key = cache_key(
                size,
                classes,
                [[file.name, *file.stamp] for file in train.files],
                [[file.name, *file.stamp] for file in test.files],
            )

            def decode() -> Dataset:
                names = [file.name for file in train.files + test.files]
                decoded = decode_files(names, archive.read, size)
                if not decoded.good or decoded.good[0] >= len(train.files):
                    first = ": ".join(decoded.broken[0])
                    raise wrong_root(root, f"no training image can be read ({first})")
                return _dataset(name, train, test, classes, decoded)

            return cached(cache_dir(self.settings.cache), name, key, decode)


def _dataset(
    name: str, train: FileList, test: FileList, classes: tuple[str, ...], decoded: Decoded
) -> Dataset:
    """The decoded images with their labels; `decoded` has the training files' images first."""
    images, broken = decoded.images, decoded.broken
    good = torch.tensor(decoded.good)
    count = int((good < len(train.files)).sum())
    if train.labels is None:
        return Dataset(name, ImageSet(images), None, broken)
    train_set = ImageSet(images[:count], train.labels[good[:count]], classes)
    if test.labels is None or count == len(good):
        return Dataset(name, train_set, None, broken)
    test_labels = test.labels[good[count:] - len(train.files)]
    return Dataset(name, train_set, ImageSet(images[count:], test_labels, classes), broken)
