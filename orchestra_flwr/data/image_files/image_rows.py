"""Images that lines of a table describe: what each shows, whose it is, and where it is read."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.image_files import GroupOptions
from orchestra_flwr.data.image_files.decoded_cache import cache_dir, cache_key, cached
from orchestra_flwr.data.image_files.decoding import Decoded, any_readable, decode_files
from orchestra_flwr.data.images import UNLABELLED, Dataset, ImageSet, warn_of_unlabelled
from orchestra_flwr.data.subset import SUBSET_SEED, balanced_subset
from orchestra_flwr.files import folder_name

HIDDEN = (None, -1)  # what stands for no label

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
        flat = [each for value in shown for each in value] if self.several else shown
        words = sorted({str(value) for value in flat})
        self.names = tuple(map(printable, words if names is None else names))
        numbers = words if names is None else map(str, range(len(names)))
        self._number = {word: position for position, word in enumerate(numbers)}

    def targets(self, values: Sequence[Any]) -> Targets | None:
        """Of the images of a split; UNLABELLED where hidden, None where all are.

        Of several classes of an image those are left out that no training image shows; where the
        classes of some are hidden, this is None.

        Raises:
            ConfigError: an image is of a class without training images, or of several classes
                where no training image may be.
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
    """The images of a split.

    Attributes:
        names: of the images, printable or not, for messages and for `read`.
        read: gives an image's file.
        targets: what each shows, UNLABELLED if that is not known; None if it is of none.
        groups: whose each is; None if that is not known.
        identity: differs between two versions of the images; values that JSON can hold.
    """

    names: Sequence[str]
    read: Callable[[str], bytes]
    targets: Targets | None
    groups: Sequence[str] | None
    identity: Any

    def limited(self, limit: int | None, groups: int | None = None) -> "Rows":
        """At most `limit` images, of each class alike, and of at most so many groups.

        Groups are drawn at random, the same ones for every seed; a larger number contains a
        smaller one.

        Raises:
            ConfigError: groups are limited, and nothing says whose an image is.
        """
        among = np.arange(len(self.names))
        if groups is not None:
            if self.groups is None:
                raise ConfigError(f"data.groups={groups}: data.group must name a column")
            owners, owner = np.unique(np.array(self.groups), return_inverse=True)
            drawn = np.random.default_rng(SUBSET_SEED).permutation(len(owners))[:groups]
            among = np.flatnonzero(np.isin(owner, drawn))
        targets = None if self.targets is None else self.targets[among]
        labels: Any = None if targets is None or targets.ndim > 1 else targets
        return self._of(among[balanced_subset(labels, len(among), limit)])

    def labelled(self) -> "Rows":
        """Without the images whose class is not known; all, where none is."""
        return self if self.targets is None else self._of(np.flatnonzero(~self.unlabelled))

    @property
    def unlabelled(self) -> NDArray[np.bool_]:
        """(N,) which images have no label, though others have."""
        if self.targets is None or self.targets.ndim > 1:
            return np.zeros(len(self.names), dtype=bool)
        return np.equal(self.targets, UNLABELLED)

    def _of(self, chosen: NDArray[np.int64]) -> "Rows":
        indices = chosen.tolist()
        return replace(
            self,
            names=[self.names[index] for index in indices],
            targets=None if self.targets is None else self.targets[indices],
            groups=None if self.groups is None else [self.groups[index] for index in indices],
        )

    def images(self, classes: tuple[str, ...], decoded: Decoded | None = None) -> ImageSet:
        """The decoded images; None: all, without pixels. Files lie in the folder of their group."""
        good = range(len(self.names)) if decoded is None else decoded.good
        pixels = torch.empty(len(good), 3, 0, 0, dtype=torch.uint8)
        files: tuple[str, ...] = ()
        if self.groups is not None:
            named = ((self.groups[i], self.names[i].rpartition("/")[2]) for i in good)
            files = tuple(f"{folder_name(group)}/{name}" for group, name in named)
        targets = None if self.targets is None else torch.from_numpy(self.targets[list(good)])
        kind = "tags" if targets is not None and targets.ndim > 1 else "labels"
        return ImageSet(
            pixels if decoded is None else decoded.images,
            classes=() if targets is None else classes,
            files=files,
            **{kind: targets},
        )


def load_rows(
    train: Rows,
    test: Rows | None,
    classes: tuple[str, ...],
    data: DataConfig,
    options: GroupOptions,
    *,
    facts: Sequence[Any],
    listed: Callable[[Dataset], None],
) -> Dataset:
    """Decodes images, or reads them from the cache.

    Args:
        classes: their names.
        data: size and limits.
        options: the number of groups, and the cache.
        facts: what else decides what is decoded; values that JSON can hold.
        listed: is called with the images without pixels before they are decoded.

    Raises:
        ConfigError: no training image can be read, or `listed` refuses them.
    """
    for rows, kind in ((train, "training"), (test, "test")):
        if rows is not None:
            missing = int(rows.unlabelled.sum())
            warn_of_unlabelled(f"data={data.name}", kind, missing, len(rows.names))
    train = train.limited(data.train_limit, options.groups)
    test = None if test is None else test.labelled().limited(data.test_limit)
    parts = [part for part in (train, test) if part is not None]
    limits = [] if options.groups is None else [options.groups]
    key = cache_key(data.image_size, *facts, [_facts(train), test and _facts(test)], *limits)

    def decode() -> Dataset:
        listed(_dataset(data.name, classes, parts))
        decoded = [decode_files(part.names, part.read, data.image_size) for part in parts]
        if not decoded[0].good:
            first = ": ".join(decoded[0].broken[0]) if decoded[0].broken else "there is none"
            raise ConfigError(f"data={data.name}: no training image can be read ({first})")
        return _dataset(data.name, classes, parts, decoded)

    def readable(unread: Collection[str]) -> bool:
        return any(any_readable(unread, part.names, part.read) for part in parts)

    return cached(cache_dir(options.cache), data.name, key, decode, readable)


def _facts(rows: Rows) -> list[Any]:
    targets = rows.targets
    # Earlier versions took hidden whole numbers for a class, -1, and no labels where some were
    # hidden: their caches are not used.
    shown = ["hidden"] if targets is None else [*targets.shape[1:]]
    some = ["some hidden"] if rows.unlabelled.any() else []
    return [rows.identity, len(rows.names), *shown, *some]


def _dataset(
    name: str, classes: tuple[str, ...], parts: Sequence[Rows], decoded: Sequence[Decoded] = ()
) -> Dataset:
    """Of training and maybe test images; without `decoded` they have no pixels."""
    sets = [
        replace(rows, groups=None if position else rows.groups).images(classes, images)
        for position, (rows, images) in enumerate(zip_longest(parts, decoded))
    ]
    tested = all(each.targets is not None and len(each) for each in sets)
    skipped = tuple(each for part in decoded for each in part.broken)
    unread = tuple(each for part in decoded for each in part.unread)
    side = decoded[0].shorter_side if decoded else None
    test = sets[1] if len(sets) > 1 and tested else None
    return Dataset(name, sets[0], test, skipped, unread, shorter_side=side)


def _is_hidden(value: Any) -> bool:
    return not isinstance(value, list) and value in HIDDEN
