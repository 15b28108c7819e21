"""Images before they are read: what each shows, who owns it, and where it comes from."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.image_files import CacheOptions, GroupOptions
from orchestra_flwr.data.image_files.archive import Archive, ImageFile
from orchestra_flwr.data.image_files.decoded_cache import cache_dir, cache_key, cached
from orchestra_flwr.data.image_files.decoding import Decoded, any_readable, decode_files
from orchestra_flwr.data.images import UNLABELLED, Dataset, ImageSet, warn_of_unlabelled
from orchestra_flwr.data.subset import SUBSET_SEED, balanced_subset
from orchestra_flwr.files import folder_name

HIDDEN = (None, -1)  # values that mean no label

Targets = NDArray[np.int64] | NDArray[np.bool_]  # (N,) classes, or (N, K) which an image shows


class Classes:
    """The classes of a column.

    Args:
        key: the configuration key that names the column, and its value, for messages.
        values: of the training images: class names or, with `names`, their numbers; lists of them
            where an image may show several.
        names: of the classes; None: as the values have them, sorted.
    """

    def __init__(self, key: str, values: Sequence[Any], names: Sequence[str] | None = None) -> None:
        self._key = key
        self.several = any(isinstance(value, list) for value in values)
        shown = [value for value in values if not _is_hidden(value)]
        flat = [label for value in shown for label in value] if self.several else shown
        words = sorted({str(value) for value in flat})
        self.names = tuple(map(printable, words if names is None else names))
        numbers = words if names is None else map(str, range(len(names)))
        self._number = {word: position for position, word in enumerate(numbers)}

    def targets(self, values: Sequence[Any]) -> Targets | None:
        """The targets of a split's images: UNLABELLED where hidden, None if all are hidden.

        If images may show several classes, those that no training image shows are left out, and if
        the classes of some images are hidden, this is None.

        Raises:
            ConfigError: an image is of a class without training images, or of several classes
                although training images have one each.
        """
        hidden = [_is_hidden(value) for value in values]
        if all(hidden) or (self.several and any(hidden)):
            return None
        if self.several:
            tags = np.zeros((len(values), len(self.names)), dtype=bool)
            for row, value in zip(tags, values, strict=True):
                row[[self._number[str(v)] for v in value if str(v) in self._number]] = True
            return tags
        if any(isinstance(value, list) for value in values):
            raise ConfigError(
                f"{self._key}: test images must have one label each, as the training images have"
            )
        words = [None if _is_hidden(value) else str(value) for value in values]
        unknown = {word for word in words if word is not None} - self._number.keys()
        if unknown:
            raise ConfigError(
                f"{self._key}: there are test images of a class without training images, "
                f"{printable(min(unknown))}"
            )
        numbers = [UNLABELLED if word is None else self._number[word] for word in words]
        return np.array(numbers, dtype=np.int64)


@dataclass(frozen=True)
class Rows:
    """The images of a split."""

    names: Sequence[str]  # of the images, printable or not, for messages and for `read`
    read: Callable[[str], bytes]  # gives an image's file
    # What each shows, UNLABELLED if that is not known; None if no image's is known.
    targets: Targets | None
    groups: Sequence[str] | None  # the owner of each; None if that is not known
    # Takes some of the names and identifies their images, so that two versions of them differ;
    # returns values that JSON can hold.
    identity: Callable[[Sequence[str]], Any]
    are_paths: bool = False  # whether the names are paths below `data.root`

    @classmethod
    def of_files(
        cls, archive: Archive, files: Sequence[tuple[ImageFile, str | None]], classes: Sequence[str]
    ) -> "Rows":
        """Files of an archive, each with the name of its class; None: it is in none."""
        number: dict[str | None, int] = {name: position for position, name in enumerate(classes)}
        number[None] = UNLABELLED
        targets = np.array([number[name] for _, name in files], dtype=np.int64)
        by_name = {file.name: file for file, _ in files}

        def identity(some: Sequence[str]) -> list[Any]:
            return archive.identity([by_name[name] for name in some])

        shown = targets if classes else None
        return cls([*by_name], archive.read, shown, None, identity, are_paths=True)

    def limited(self, limit: int | None) -> "Rows":
        """At most `limit` images, balanced by class."""
        labels: Any = None if self.targets is None or self.targets.ndim > 1 else self.targets
        return self.only(balanced_subset(labels, len(self.names), limit))

    def of_groups(self, count: int) -> "Rows":
        """The images of at most `count` groups.

        Groups are drawn at random, the same ones for every seed; a larger choice contains a smaller
        one.

        Raises:
            ConfigError: the owners of the images are not known.
        """
        if self.groups is None:
            raise ConfigError(f"data.groups={count}: data.group must name a column")
        owners, owner = np.unique(np.array(self.groups), return_inverse=True)
        drawn = np.random.default_rng(SUBSET_SEED).permutation(len(owners))[:count]
        return self.only(np.flatnonzero(np.isin(owner, drawn)))

    def labelled(self) -> "Rows":
        """The images whose class is known; all of them, if none is."""
        return self if self.targets is None else self.only(np.flatnonzero(~self.unlabelled))

    @property
    def unlabelled(self) -> NDArray[np.bool_]:
        """(N,) which images have no label, though others have."""
        if self.targets is None or self.targets.ndim > 1:
            return np.zeros(len(self.names), dtype=bool)
        return np.equal(self.targets, UNLABELLED)

    def only(self, chosen: NDArray[np.int64]) -> "Rows":
        """The images at some positions, in this order."""
        indices = chosen.tolist()
        return replace(
            self,
            names=[self.names[index] for index in indices],
            targets=None if self.targets is None else self.targets[indices],
            groups=None if self.groups is None else [self.groups[index] for index in indices],
        )

    def images(self, classes: tuple[str, ...], pixels: Tensor | None = None) -> ImageSet:
        """As a set, without `pixels` empty ones. With groups, files are named in their folders."""
        files = tuple(self.names) if self.are_paths else ()
        if self.groups is not None:
            named = zip(self.groups, self.names, strict=True)
            files = tuple(
                f"{folder_name(group)}/{name.rpartition('/')[2]}" for group, name in named
            )
        targets = None if self.targets is None else torch.from_numpy(self.targets)
        kind = "tags" if targets is not None and targets.ndim > 1 else "labels"
        return ImageSet(
            torch.empty(len(self.names), 3, 0, 0, dtype=torch.uint8) if pixels is None else pixels,
            classes=() if targets is None else classes,
            files=files,
            **{kind: targets},
        )


@dataclass(frozen=True)
class Contents:
    """What a source holds."""

    train: Rows  # the training images
    test: Rows | None  # the test images, if there are any
    classes: tuple[str, ...]  # the names of the classes of both, as text that can be shown anywhere

    def dataset(self, name: str, decoded: Decoded | None = None) -> Dataset:
        """The decoded images, training images first; with None all images, without pixels."""
        count = len(self.train.names)
        everything = range(count + len(self.test.names if self.test else ()))
        good = np.array(everything if decoded is None else decoded.good, dtype=np.int64)
        first, second = good[good < count], good[good >= count] - count
        pixels = (None, None) if decoded is None else decoded.images.tensor_split([len(first)])
        train, test = self.train.only(first).images(self.classes, pixels[0]), None
        if self.test is not None and train.targets is not None:
            tested = self.test.only(second).images(self.classes, pixels[1])
            test = replace(tested, files=()) if len(tested) and tested.targets is not None else None
        if decoded is None:
            return Dataset(name, train, test)
        return Dataset(
            name, train, test, decoded.broken, decoded.unread, shorter_side=decoded.shorter_side
        )


def load_files(
    contents: Contents,
    root: Path,
    data: DataConfig,
    options: CacheOptions,
    listed: Callable[[Dataset], None],
) -> Dataset:
    """Decodes the files of an archive, or reads them from the cache.

    Args:
        root: where the archive is, for messages.
        data: size and limits.
        options: the cache.
        listed: is called with the images without pixels before they are decoded.

    Raises:
        ConfigError: no training image can be read, or `listed` refuses them.
    """

    def facts(chosen: Contents) -> list[Any]:
        train, test = chosen.train, chosen.test
        tested = train.identity([]) if test is None else test.identity(test.names)
        return [chosen.classes, train.identity(train.names), tested]

    return _load(contents, data, options, listed, where=f"data.root={root}", facts=facts)


def load_rows(
    contents: Contents,
    data: DataConfig,
    options: GroupOptions,
    given: Sequence[Any],
    listed: Callable[[Dataset], None],
) -> Dataset:
    """As :func:`load_files`, for the lines of a table; leaves out unlabelled test images.

    Args:
        options: the number of groups, and the cache.
        given: what else decides what is decoded; values that JSON can hold.
    """
    train, test = contents.train, contents.test
    for rows, kind in ((train, "training"), (test, "test")):
        if rows is not None:
            missing = int(rows.unlabelled.sum())
            warn_of_unlabelled(f"data={data.name}", kind, missing, len(rows.names))
    if options.groups is not None:
        train = train.of_groups(options.groups)
    limits = [] if options.groups is None else [options.groups]

    def facts(chosen: Contents) -> list[Any]:
        return [*given, [_facts(chosen.train), chosen.test and _facts(chosen.test)], *limits]

    contents = Contents(train, test and test.labelled(), contents.classes)
    return _load(contents, data, options, listed, where=f"data={data.name}", facts=facts)


def _load(
    contents: Contents,
    data: DataConfig,
    options: CacheOptions,
    listed: Callable[[Dataset], None],
    *,
    where: str,
    facts: Callable[[Contents], Sequence[Any]],
) -> Dataset:
    """Applies the limits before anything is decoded."""
    test = contents.test and contents.test.limited(data.test_limit)
    chosen = Contents(contents.train.limited(data.train_limit), test, contents.classes)
    parts = [rows for rows in (chosen.train, test) if rows is not None]
    names = [name for rows in parts for name in rows.names]
    readers = {name: rows.read for rows in parts for name in rows.names}

    def read(name: str) -> bytes:
        return readers[name](name)

    def decode() -> Dataset:
        listed(chosen.dataset(data.name))
        decoded = decode_files(names, read, data.image_size)
        count = len(chosen.train.names)
        if not decoded.good or decoded.good[0] >= count:
            first = ": ".join(decoded.broken[0]) if count else "there is none"
            raise ConfigError(f"{where}: no training image can be read ({first})")
        return chosen.dataset(data.name, decoded)

    def readable(unread: Collection[str]) -> bool:
        return any_readable(unread, names, read)

    key = cache_key(data.image_size, *facts(chosen))
    return cached(cache_dir(options.cache), data.name, key, decode, readable)


def _facts(rows: Rows) -> list[Any]:
    targets = rows.targets
    # Earlier versions took hidden whole numbers for a class, -1, and no labels where some were
    # hidden: their caches are not used.
    shown = ["hidden"] if targets is None else [*targets.shape[1:]]
    some = ["some hidden"] if rows.unlabelled.any() else []
    return [rows.identity(rows.names), len(rows.names), *shown, *some]


def _is_hidden(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return not isinstance(value, list) and value in HIDDEN
