"""Image data sets of the Hugging Face hub, and those that its library has saved in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from logging import getLogger
from pathlib import Path
from typing import Any

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.image_files import GroupOptions
from orchestra_flwr.data.image_files.archive import read_regular
from orchestra_flwr.data.image_files.image_rows import HIDDEN, Classes, Contents, Rows, load_rows
from orchestra_flwr.data.images import Dataset
from orchestra_flwr.data.label_column import label_columns
from orchestra_flwr.data.sources import Source
from orchestra_flwr.extras import log_the_hub_once, require
from orchestra_flwr.files import at_home
from orchestra_flwr.plugins import must_be_one_of

logger = getLogger("orchestra_flwr.data")

TEST_SPLITS = ("test", "validation", "valid", "val")


class HuggingFace(Source):
    """The images of `data.dataset`, whatever their sizes, colour modes and formats."""

    class Settings(GroupOptions):  # an unnamed column is the only one that fits
        dataset: str | None = None  # of the hub, owner/name; or a folder
        subset: str | None = None  # what the hub calls a configuration
        revision: str | None = None  # a commit, branch or tag of the hub
        train: str = "train"  # names of splits
        test: str | None = None
        image: str | None = None  # names of columns
        label: str | None = None

    @classmethod
    def label(cls, settings: Settings) -> str:
        """The names of the data set and its subset."""
        parts = ["huggingface", Path(settings.dataset or "").name, settings.subset or ""]
        return "-".join(part for part in parts if part)

    def load(self) -> Dataset:
        """Reads the data set, from the hub or a folder, and decodes its images.

        Raises:
            ConfigError: `datasets` is not installed; the data set, a split or a column is not
                there; or no image can be read.
        """
        require(f"data={self.data.name}", "huggingface", "datasets")
        splits = _splits(self.settings)
        train = self._split(splits, "train", self.settings.train)
        name = self.settings.test or next((n for n in TEST_SPLITS if n in splits), None)
        test = self._split(splits, "test", name) if name else None
        columns = _Columns(train, self.settings)
        if columns.label is None and columns.others:
            self.without_labels = (
                f"data.label must name the column of their classes: {', '.join(columns.others)}"
            )
        contents = Contents(
            columns.rows(train, "train"),
            None if test is None else columns.rows(test, "test"),
            columns.classes.names,
        )
        given = [
            [self.settings.image, columns.label],  # by any rule: a cache holds its classes
            self.settings.group and [self.settings.group, "%2F"],  # in a name, for a slash
        ]
        return load_rows(contents, self.data, self.settings, given, self.listed)

    def _split(self, splits: Mapping[str, Any], key: str, name: str) -> Any:
        if name not in splits:
            raise ConfigError(f"data.{key}={name}: {must_be_one_of(name, [*splits])}")
        return splits[name]


class _Columns:
    """Which columns hold images, classes and groups.

    Attributes:
        label: that of the classes; None without one.
        others: those that are neither images nor groups, and that `data.label` may name.
    """

    def __init__(self, split: Any, settings: HuggingFace.Settings) -> None:
        from datasets import ClassLabel, Image

        features = split.features
        self._image: str = _column(features, "image", settings.image, Image)
        self._group = settings.group and _column(features, "group", settings.group, object)
        self.others = [
            name
            for name, feature in features.items()
            if name not in (self._image, self._group) and not isinstance(feature, Image)
        ]
        self.label = _label_column(features, settings.label, self.others)
        named = features.get(self.label)
        named = getattr(named, "feature", named)  # of lists, what they hold
        names = named.names if isinstance(named, ClassLabel) else None
        self.classes = Classes(f"data.label={self.label}", self._values(split, self.label), names)

    def rows(self, split: Any, part: str) -> Rows:
        """The images of a split; its name is part of theirs."""
        from datasets import ClassLabel, Image

        try:
            encoded = split.select_columns([self._image])
            encoded = encoded.cast_column(self._image, Image(decode=False))
        except Exception as error:  # pyarrow's own, by the type of the column
            reason = " ".join(str(error).split())
            raise ConfigError(f"data.image={self._image}: holds no images ({reason})") from None

        def read(name: str) -> bytes:
            value = encoded[int(name.rpartition("/")[2])][self._image]
            if value is None:
                raise ValueError("no image")
            content: bytes | None = value["bytes"]
            return read_regular(Path(value["path"])) if content is None else content

        labelled = self.label in split.features
        values = self._values(split, self._group) if self._group in split.features else None
        kind = split.features.get(self._group)
        if values is not None and isinstance(kind, ClassLabel):
            values = [None if value in HIDDEN else kind.int2str(value) for value in values]
        if part == "train" and values and (without := sum(v in (None, "") for v in values)):
            text = "data.group=%s: %d of %d images have none; together they count as a group"
            logger.warning(text, self._group, without, len(values))
        return Rows(
            names=[f"{part}/{index}" for index in range(len(split))],
            read=read,
            targets=self.classes.targets(self._values(split, self.label)) if labelled else None,
            groups=None if values is None else [str(value) for value in values],
            identity=lambda names: str(split._fingerprint),
        )

    @staticmethod
    def _values(split: Any, column: str | None) -> list[Any]:
        return [] if column is None else list(split[column])


def _splits(settings: HuggingFace.Settings) -> Mapping[str, Any]:
    """The splits by name."""
    import datasets

    log_the_hub_once()
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


def _label_column(features: Mapping[str, Any], name: str | None, others: list[str]) -> str | None:
    """The column of the classes, as :func:`label_columns` chooses it unless `data.label` does."""
    from datasets import ClassLabel

    if name is not None:
        return _named(features, "label", name)
    fitting = label_columns(others, [c for c in others if isinstance(features[c], ClassLabel)])
    if len(fitting) > 1:
        raise _must_name("label", fitting)
    return fitting[0] if fitting else None


def _column(features: Mapping[str, Any], key: str, name: str | None, kind: type) -> str:
    """The column that an option names, or else the only one of a kind."""
    if name is not None:
        return _named(features, key, name)
    fitting = [column for column, feature in features.items() if isinstance(feature, kind)]
    if len(fitting) != 1:
        raise _must_name(key, fitting or [*features])
    return fitting[0]


def _named(features: Mapping[str, Any], key: str, name: str) -> str:
    if name not in features:
        raise ConfigError(f"data.{key}={name}: {must_be_one_of(name, [*features])}")
    return name


def _must_name(key: str, columns: list[str]) -> ConfigError:
    return ConfigError(f"data.{key}: must be given, the name of a column: {', '.join(columns)}")
