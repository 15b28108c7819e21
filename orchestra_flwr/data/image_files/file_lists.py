"""Lists of image files with their classes, and the data set that they are decoded to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from orchestra_flwr.config import DataConfig
from orchestra_flwr.data.image_files import FileOptions
from orchestra_flwr.data.image_files.archive import Archive, ImageFile, wrong_root
from orchestra_flwr.data.image_files.decoded_cache import cache_dir, cache_key, cached
from orchestra_flwr.data.image_files.decoding import Decoded, any_readable, decode_files
from orchestra_flwr.data.images import UNLABELLED, Dataset, ImageSet
from orchestra_flwr.data.subset import balanced_subset


@dataclass(frozen=True)
class FileList:
    """Image files and their classes.

    Attributes:
        files: n files.
        labels: int64, (n,), indices into the sorted names of the classes, UNLABELLED for files that
            are in none; None without classes.
    """

    files: list[ImageFile]
    labels: Tensor | None

    @classmethod
    def of(
        cls, files: list[ImageFile], names: Sequence[str | None], classes: Sequence[str]
    ) -> FileList:
        """Files with the name of each one's class, None for none."""
        if not any(names):
            return cls(files, None)
        index: dict[str | None, int] = {name: position for position, name in enumerate(classes)}
        index[None] = UNLABELLED
        return cls(files, torch.tensor([index[name] for name in names]))

    def limited(self, limit: int | None) -> FileList:
        """A class-balanced choice of at most `limit` files."""
        labels = None if self.labels is None else self.labels.numpy()
        chosen = balanced_subset(labels, len(self.files), limit)
        chosen_labels = None if self.labels is None else self.labels[torch.from_numpy(chosen)]
        return FileList([self.files[index] for index in chosen], chosen_labels)


@dataclass(frozen=True)
class Contents:
    """What an archive holds.

    Attributes:
        train: the training images.
        test: the test images; none where there are none.
        classes: the names of the classes of both, sorted, as text that can be shown anywhere.
    """

    train: FileList
    test: FileList
    classes: tuple[str, ...]


def load_files(
    archive: Archive,
    root: Path,
    contents: Contents,
    data: DataConfig,
    options: FileOptions,
    *,
    listed: Callable[[Dataset], None],
) -> Dataset:
    """Decodes the images of an archive, or reads them from the cache.

    The limits choose among the files, before anything is decoded.

    Args:
        listed: is called with the images without pixels before they are decoded.

    Raises:
        ConfigError: no training image can be read, or `listed` refuses them.
    """
    train, test = contents.train.limited(data.train_limit), contents.test.limited(data.test_limit)
    chosen = Contents(train, test, contents.classes)
    key = cache_key(
        data.image_size,
        chosen.classes,
        archive.identity(train.files),
        archive.identity(test.files),
    )

    names = [file.name for file in train.files + test.files]

    def decode() -> Dataset:
        listed(_listing(data.name, chosen))
        decoded = decode_files(names, archive.read, data.image_size)
        if not decoded.good or decoded.good[0] >= len(train.files):
            first = ": ".join(decoded.broken[0])
            raise wrong_root(root, f"no training image can be read ({first})")
        dataset = _dataset(data.name, chosen, decoded)
        return replace(dataset, shorter_side=decoded.shorter_side)

    def readable(unread: Collection[str]) -> bool:
        return any_readable(unread, names, archive.read)

    return cached(cache_dir(options.cache), data.name, key, decode, readable)


def _listing(name: str, contents: Contents) -> Dataset:
    """The images, as if all could be read, without their pixels."""
    sets = [
        ImageSet(
            torch.empty(len(part.files), 3, 0, 0, dtype=torch.uint8),
            part.labels,
            () if part.labels is None else contents.classes,
            tuple(file.name for file in part.files),
        )
        for part in (contents.train, contents.test)
    ]
    return Dataset(name, sets[0], sets[1] if len(sets[1]) else None)


def _dataset(name: str, contents: Contents, decoded: Decoded) -> Dataset:
    """The decoded images with their labels; `decoded` has the training files' images first."""
    train, test, classes = contents.train, contents.test, contents.classes
    images, left_out = decoded.images, (decoded.broken, decoded.unread)
    good = torch.tensor(decoded.good)
    count = int((good < len(train.files)).sum())
    files = tuple(train.files[index].name for index in decoded.good[:count])
    if train.labels is None:
        return Dataset(name, ImageSet(images, files=files), None, *left_out)
    train_set = ImageSet(images[:count], train.labels[good[:count]], classes, files)
    if test.labels is None or count == len(good):
        return Dataset(name, train_set, None, *left_out)
    test_labels = test.labels[good[count:] - len(train.files)]
    test_set = ImageSet(images[count:], test_labels, classes)
    return Dataset(name, train_set, test_set, *left_out)
