"""Image data sets of the Hugging Face hub, and those that its library has saved in a folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.image_files import CacheOptions
from orchestra_flwr.data.image_files.decoded_cache import cache_dir, cache_key, cached
from orchestra_flwr.data.image_files.decoding import Decoded, any_readable, decode_files
from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.data.sources import Source
from orchestra_flwr.data.subset import balanced_subset
from orchestra_flwr.extras import require
from orchestra_flwr.files import at_home, folder_name

TEST_SPLITS = ("test", "validation", "valid", "val")
HIDDEN = (None, -1)  # what stands for no label


class HuggingFaceOptions(CacheOptions):
    """Options under `data.` for data=huggingface; without a column's name the only fitting one."""

    dataset: str | None = None  # of the hub, owner/name; or a folder
    subset: str | None = None  # what the hub calls a configuration
    revision: str | None = None  # a commit, branch or tag of the hub
    train: str = "train"  # names of splits
    test: str | None = None
    image: str | None = None  # names of columns
    label: str | None = None
    group: str | None = None  # whom an image belongs to, for partition=groups


class HuggingFace(Source):
    """The images of `data.dataset`, whatever their sizes, colour modes and formats."""

    Settings = HuggingFaceOptions

    @classmethod
    def label(cls, settings: HuggingFaceOptions) -> str:
        """The names of the data set and its subset."""
        parts = ["huggingface", Path(settings.dataset or "").name, settings.subset or ""]
        return "-".join(part for part in parts if part)

    def load(self) -> Dataset:
        """Reads the data set, from the hub or a folder, and decodes its images.

        Raises:
            ConfigError: `datasets` is not installed; the data set, a split or a column is not
                there; or no image can be read.
        """
        require("data=huggingface", "huggingface", "datasets")
        splits = _splits(self.settings)
        train = self._split(splits, "train", self.settings.train)
        name = self.settings.test or next((n for n in TEST_SPLITS if n in splits), None)
        test = self._split(splits, "test", name) if name else None
        columns = _Columns(train, self.settings)
        parts = [(train, self.data.train_limit), (test, self.data.test_limit)]
        chosen = [
            None if part is None else _Rows(part, columns, limit, name)
            for (part, limit), name in zip(parts, ("train", "test"), strict=True)
        ]
        key = cache_key(
            self.data.image_size,
            [self.settings.image, self.settings.label],
            self.settings.group and [self.settings.group, "%2F"],  # in a name, for a slash
            [None if rows is None else rows.facts for rows in chosen],
        )

        def decode() -> Dataset:
            size = self.data.image_size
            decoded = [None if rows is None else rows.decoded(size) for rows in chosen]
            dataset = self._dataset(columns, chosen, decoded)
            train = decoded[0]
            return replace(dataset, shorter_side=None if train is None else train.shorter_side)

        def readable(unread: Collection[str]) -> bool:
            return any(rows.readable(unread) for rows in chosen if rows is not None)

        return cached(cache_dir(self.settings.cache), self.data.name, key, decode, readable)

    def _split(self, splits: Mapping[str, Any], key: str, name: str) -> Any:
        if name not in splits:
            raise ConfigError(f"data.{key}={name}: must be one of {', '.join(splits)}")
        return splits[name]

    def _dataset(
        self, columns: _Columns, chosen: list[_Rows | None], decoded: list[Decoded | None]
    ) -> Dataset:
        train_rows, test_rows = chosen
        train, test = decoded
        assert train_rows is not None and train is not None
        if not train.good:
            first = ": ".join(train.broken[0]) if train.broken else "there is none"
            raise ConfigError(
                f"data.dataset={self.settings.dataset}: no training image can be read ({first})"
            )
        labels = columns.labels(train_rows, train)
        classes = () if labels is None else columns.classes
        left_out = (
            train.broken + (test.broken if test else ()),
            train.unread + (test.unread if test else ()),
        )
        images = ImageSet(train.images, labels, classes, train_rows.files(train))
        test_labels = columns.labels(test_rows, test) if test_rows and test else None
        if test is None or not test.good or labels is None or test_labels is None:
            return Dataset(self.data.name, images, None, *left_out)
        test_images = ImageSet(test.images, test_labels, classes)
        return Dataset(self.data.name, images, test_images, *left_out)


class _Columns:
    """Which columns hold images, classes and groups.

    Raises:
        ConfigError: none or several could be meant, or one is not there.
    """

    def __init__(self, split: Any, settings: HuggingFaceOptions) -> None:
        from datasets import ClassLabel, Image

        features = split.features
        self.image: str = _column(features, "image", settings.image, Image)
        self.label = _column(features, "label", settings.label, ClassLabel, optional=True)
        self.group = settings.group and _column(features, "group", settings.group, object)
        named = features.get(self.label)
        if isinstance(named, ClassLabel):
            self.classes = tuple(printable(name) for name in named.names)
        elif self.label:
            self.classes = tuple(sorted({str(v) for v in split[self.label] if v not in HIDDEN}))
        else:
            self.classes = ()
        self._is_numbered = isinstance(named, ClassLabel)

    def numbers(self, split: Any) -> Any:
        """Classes (n,) of a split's images; None without any, or where some are hidden."""
        if not self.label or self.label not in split.features:
            return None
        values = split[self.label]
        if self._is_numbered:
            labels = np.array([-1 if value is None else value for value in values], dtype=np.int64)
            return None if (labels < 0).any() else labels
        if any(value in HIDDEN for value in values):
            return None
        number = {name: position for position, name in enumerate(self.classes)}
        unknown = {str(value) for value in values} - number.keys()
        if unknown:
            raise ConfigError(
                f"data.label={self.label}: there are test images of a class without training "
                f"images, {printable(min(unknown))}"
            )
        return np.array([number[str(value)] for value in values], dtype=np.int64)

    def labels(self, rows: _Rows, decoded: Decoded) -> Tensor | None:
        """Classes of the images that could be read."""
        if rows.labels is None:
            return None
        return torch.from_numpy(rows.labels[rows.indices][decoded.good])


class _Rows:
    """The chosen images of a split."""

    def __init__(self, split: Any, columns: _Columns, limit: int | None, name: str) -> None:
        from datasets import Image

        self.fingerprint = str(split._fingerprint)
        self.labels = columns.numbers(split)
        self._hidden = columns.label in split.features and self.labels is None
        self.indices = balanced_subset(self.labels, len(split), limit)
        self._groups = split[columns.group] if columns.group in split.features else None
        self._encoded = split.select_columns([columns.image]).cast_column(
            columns.image, Image(decode=False)
        )
        self._column, self._name = columns.image, name

    @property
    def facts(self) -> list[Any]:
        """What decides which images and classes are decoded, as JSON can hold it."""
        # An earlier version took hidden whole numbers for a class, -1: its caches are not used.
        hidden = ["hidden"] if self._hidden else []
        return [self.fingerprint, len(self.indices), *hidden]

    def decoded(self, size: int) -> Decoded:
        """The images, as those of files are decoded."""
        return decode_files(self._names(), self._read, size)

    def readable(self, unread: Collection[str]) -> bool:
        """Whether an image that could not be read can be by now."""
        return any_readable(unread, self._names(), self._read)

    def files(self, decoded: Decoded) -> tuple[str, ...]:
        """For `partition=groups`: each image as a file in the folder of its group."""
        if self._groups is None:
            return ()
        indices = self.indices[decoded.good].tolist()
        groups = (folder_name(str(self._groups[index])) for index in indices)
        return tuple(f"{group}/{index}" for group, index in zip(groups, indices, strict=True))

    def _names(self) -> list[str]:
        return [f"{self._name}/{index}" for index in self.indices]

    def _read(self, name: str) -> bytes:
        value = self._encoded[int(name.rpartition("/")[2])][self._column]
        if value is None:
            raise ValueError("no image")
        content: bytes | None = value["bytes"]
        return Path(value["path"]).read_bytes() if content is None else content


def _splits(settings: HuggingFaceOptions) -> Mapping[str, Any]:
    """The splits by name.

    Raises:
        ConfigError: no data set is named, or it cannot be read.
    """
    import datasets

    if not settings.dataset:
        raise ConfigError(
            "data.dataset must name a data set of the Hugging Face hub (owner/name) or a folder "
            "for data=huggingface"
        )
    folder = at_home(settings.dataset)
    saved = any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))
    try:
        if saved:
            splits = datasets.load_from_disk(folder)
        else:
            path = str(folder) if folder.is_dir() else settings.dataset
            splits = datasets.load_dataset(path, settings.subset, revision=settings.revision)
    except Exception as error:  # its builders raise all kinds of errors
        reason = printable(" ".join(str(error).split()))[:300]
        raise ConfigError(
            f"data.dataset={settings.dataset}: cannot be read ({type(error).__name__}: {reason})"
        ) from None
    return splits if isinstance(splits, Mapping) else {settings.train: splits}


def _column(
    features: Mapping[str, Any], key: str, name: str | None, kind: type, *, optional: bool = False
) -> Any:
    """The column that an option names, or else the only one of a kind."""
    fitting = [column for column, feature in features.items() if isinstance(feature, kind)]
    if name is not None:
        if name not in features:
            raise ConfigError(f"data.{key}={name}: must be one of {', '.join(features)}")
        return name
    if not fitting and optional:
        return None
    if len(fitting) != 1:
        others = ", ".join(fitting or features)
        raise ConfigError(f"data.{key}: must be given, the name of a column: {others}")
    return fitting[0]
