"""Data sets of other libraries, torch's or Hugging Face's, as images in memory."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import counted
from orchestra_flwr.data.image_files.archive import SUFFIXES, UNDECODABLE, first_ones
from orchestra_flwr.data.images import UNLABELLED, Dataset, ImageSet, warn_of_unlabelled
from orchestra_flwr.data.label_column import LABEL, label_columns
from orchestra_flwr.square_image import square_image

logger = logging.getLogger(__name__)

TEST_SPLITS = ("test", "validation", "valid", "val")  # the first that is there is used
PANDAS_NA = "<NA>"  # as a text: the value itself cannot be compared
PANDAS_NAT = "NaTType"  # an empty cell of dates; its text may be a class
COLOURS = {3, 4}  # channels of a colour image, without and with transparency
OF_PIL = (OSError, UnidentifiedImageError, SyntaxError, Image.DecompressionBombError)
NO_LABEL = -1  # in the data sets of torchvision and Hugging Face


def as_dataset(source: Any, name: str, size: int) -> Dataset:
    """The images of a data set, as training reads images of any kind (:func:`square_image`).

    Args:
        source: a data set; a pair of two, for training and testing; or a mapping with "train" and
            maybe "test", "validation", "valid" or "val", of which the first is used, as Hugging
            Face's DatasetDict. The items of a data set are images, pairs (image, label), or
            mappings with an image and maybe a label: torch's and torchvision's, Hugging Face's,
            tensors (N, C, H, W), arrays (N, H, W, C), both for gray images also (N, H, W), lists.
            Labels are whole numbers or texts; -1, None, an empty text and pandas' value of an empty
            cell mean no label. Unlabelled test images are left out if others have labels. Broken
            files are named in a warning and left out. In a mapping the label is the item "label";
            else the only column that holds class labels or is called "class" or "target"; else the
            only one with "label" in its name.
        size: height and width of its images in pixels.

    Raises:
        ConfigError: there is no image, one cannot be used, several columns may be the label, or
            labels do not fit together.
    """
    train_set, test_set = _splits(source)
    if any(map(_ends_in_labels, (source, train_set, test_set))):
        raise ConfigError(
            "dataset: a pair is (train, test), and the second holds labels; images with their "
            "labels are one data set: list(zip(images, labels))"
        )
    train = _read(train_set, "training", size)
    test = None if test_set is None else _read(test_set, "test", size)
    if train.missing == len(train.labels):
        return Dataset(name, ImageSet(train.stacked), shorter_side=train.shorter_side)
    warn_of_unlabelled("dataset", train.part, train.missing, len(train.labels))
    names, numbers = _classes(train)
    train_images = ImageSet(train.stacked, _labels(train, numbers), names)
    if test is not None:
        warn_of_unlabelled("dataset", test.part, test.missing, len(test.labels))
    if test is None or test.missing == len(test.labels):
        return Dataset(name, train_images, shorter_side=train.shorter_side)
    labels = _labels(_named_as(train, test), numbers)
    test_images = ImageSet(test.stacked, labels, names).labelled
    return Dataset(name, train_images, test_images, shorter_side=train.shorter_side)


@dataclass(frozen=True)
class _Items:
    """The items of a data set."""

    part: str  # training or test, for messages
    images: list[Tensor]  # n of uint8, (3, size, size)
    labels: list[int | str | None]  # n, as in the data set; None for no label
    classes: Sequence[str] | None  # their names by number; None where the data set has none
    # The shorter side of each image before it was resized, as far as that is known.
    sides: list[int]

    @property
    def shorter_side(self) -> int | None:
        """The median, in pixels."""
        return int(np.median(self.sides)) if self.sides else None

    @property
    def stacked(self) -> Tensor:
        return torch.stack(self.images)

    @property
    def missing(self) -> int:
        """How many have no label."""
        return sum(label is None for label in self.labels)


def _splits(source: Any) -> tuple[Any, Any]:
    if isinstance(source, Mapping):
        if "train" not in source:
            raise ConfigError(
                f"dataset: must have a split named train, not only {', '.join(map(str, source))}"
            )
        for split in source:
            if split not in ("train", *TEST_SPLITS):  # the user may think that it is used
                raise ConfigError(
                    f"dataset: {printable(str(split))} is no split that is used, must be one of "
                    f"train, {', '.join(TEST_SPLITS)}; leave it out or rename it"
                )
        return source["train"], next((source[s] for s in TEST_SPLITS if s in source), None)
    if isinstance(source, tuple):
        if len(source) != 2:
            raise ConfigError(f"dataset: must be one, or a pair (train, test), not {len(source)}")
        return source
    return source, None


def _ends_in_labels(pair: Any) -> bool:
    """Whether these are images and their labels, in two parts."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        return False
    items = pair[1]
    if isinstance(items, Tensor | np.ndarray):
        return items.ndim == 1 and items.dtype != object
    first = next(iter(items), None) if isinstance(items, list) or _of_pandas(items) else None
    is_file = isinstance(first, str) and Path(first).suffix.lower() in SUFFIXES | UNDECODABLE
    return isinstance(first, int | str) and not is_file


def _of_pandas(items: Any) -> bool:
    """A column or a table, whose [number] is the item with that name, not at that position."""
    return hasattr(items, "iloc")


def _read(items: Any, part: str, size: int) -> _Items:
    images: list[Tensor] = []
    labels: list[int | str | None] = []
    sides: list[int] = []
    broken: list[tuple[str, str]] = []
    classes = _declared(items)
    for number, item in enumerate(_each(items, part)):
        if isinstance(item, UnidentifiedImageError):
            broken.append((f"{part} image {number}", str(item)))
            continue
        image, label, names = _image_and_label(item, items)
        classes = names or classes
        try:
            images.append(square_image(image, size))
            sides += [min(image.size)] if isinstance(image, Image.Image) else []
            labels.append(_plain(label))
        except (OSError, TypeError, ValueError) as error:
            if isinstance(error, ValueError) and isinstance(image, str | Path):
                file, _, reason = str(error).partition(": ")
                broken.append((file, reason))
                continue
            raise ConfigError(
                f"dataset: {part} image {number}: {error}{_hint(items, error)}"
            ) from None
    if broken:
        skipped = counted(len(broken), f"{part} image")
        logger.warning("dataset: skipped %s: %s", skipped, first_ones(broken))
    if not images:
        raise ConfigError(f"dataset: there are no {part} images")
    return _Items(part, images, labels, classes, sides)


def _hint(items: Any, error: Exception) -> str:
    """What may have been meant by images that cannot be used."""
    if "values of images" in str(error):
        return "; transforms must not normalise them"
    if isinstance(items, list) and len(items) == 2 and not isinstance(error, OSError):
        return "; two data sets, for training and testing, are a tuple: (train, test)"
    if isinstance(items, tuple) and len(items) == 2:  # in a tuple of two, or in a mapping
        return "; a tuple of two is (train, test): pairs (image, label) must stand in a list"
    return ""


def _each(items: Any, part: str) -> Iterator[Any]:
    if isinstance(items, str | Path):
        raise ConfigError(
            f"dataset: the {part} images are a path, not a data set: images in a folder or zip are "
            "data=image_folder data.root=<path>"
        )
    if getattr(items, "shape", None) == ():  # it has `__len__`, which fails
        raise ConfigError(f"dataset: the {part} images are no data set, but a single value")
    if _of_pandas(items):
        if items.ndim > 1:
            raise ConfigError(
                f"dataset: the {part} images are a table; give its columns of images and labels: "
                'list(zip(table["file"], table["label"]))'
            )
        return iter(items)
    _check_several(items, part)
    # Not every data set of torch ends an iteration by itself.
    if hasattr(items, "__len__") and hasattr(items, "__getitem__"):
        return (_item(items, number) for number in range(len(items)))
    if isinstance(items, Iterable):
        return iter(items)
    raise ConfigError(f"dataset: the {part} images are no data set, but {type(items).__name__}")


def _check_several(items: Any, part: str) -> None:
    """Refuses what has the shape of one colour image: its rows would be read as gray images."""
    if not isinstance(items, Tensor | np.ndarray) or items.ndim != 3:
        return
    if COLOURS.isdisjoint((items.shape[0], items.shape[2])):
        return
    gray = "[:, None]" if isinstance(items, Tensor) else "[..., None]"
    raise ConfigError(
        f"dataset: the {part} images must be several, and {tuple(items.shape)} is the shape of one "
        f"(for one: image[None]; for gray ones: images{gray})"
    )


def _item(items: Any, number: int) -> Any:
    """An item; in place of one whose image the data set itself cannot decode, an error."""
    try:
        return items[number]
    except OF_PIL as error:
        if type(error) not in OF_PIL or getattr(error, "errno", None) is not None:
            raise  # the system's error, or a network's
        return UnidentifiedImageError(printable(" ".join(str(error).split())))


def _image_and_label(item: Any, items: Any) -> tuple[Any, Any, Sequence[str] | None]:
    """The image, its label, and the names of the classes where its column declares them."""
    if isinstance(item, Mapping):
        image = next((key for key, value in item.items() if _is_image(value)), None)
        if image is None:
            raise ConfigError(f"dataset: no image among {', '.join(map(str, item))}")
        column = _label_column(items, [key for key in item if key != image])
        label = None if column is None else item[column]
        return item[image], label, _class_names_of(items, column)
    if isinstance(item, tuple | list) and item:
        return item[0], item[1] if len(item) > 1 else None, None
    return item, None, None


def _is_image(value: Any) -> bool:
    return isinstance(value, Image.Image | Path) or (
        isinstance(value, np.ndarray | Tensor) and value.ndim in (2, 3)
    )


def _label_column(items: Any, columns: Sequence[Any]) -> Any:
    """The one of these columns that holds the label; None without one."""
    declared = [key for key in columns if _class_names_of(items, key) is not None]
    fitting = label_columns(columns, declared)
    if len(fitting) > 1:
        raise ConfigError(
            f"dataset: several columns may hold the label: {', '.join(map(str, fitting))}; "
            f"rename the one with the classes to {LABEL}, or remove the others"
        )
    return fitting[0] if fitting else None


def _class_names_of(items: Any, column: Any) -> Sequence[str] | None:
    features = getattr(items, "features", None)
    return getattr(features.get(column), "names", None) if isinstance(features, Mapping) else None


def _plain(label: Any) -> int | str | None:
    """A label as a number or text of Python's own."""
    if isinstance(label, Tensor | np.ndarray | np.generic) and len(label.reshape(-1)) == 1:
        label = label.item()
    if isinstance(label, float) and label.is_integer():  # pandas', where another label is missing
        label = int(label)
    is_nan = isinstance(label, float) and math.isnan(label)
    is_nan |= type(label).__name__ == PANDAS_NAT
    if label is None or is_nan or str(label).strip() in ("", PANDAS_NA):
        return None
    if isinstance(label, bool) or not isinstance(label, int | str):  # before it is compared
        shown = " ".join(repr(label).split())[:100]
        if isinstance(label, Tensor | np.ndarray):
            shown = f"an array of shape {tuple(label.shape)}"
        raise TypeError(
            f"its label must be a whole number or a text, the one class of the image, not {shown}"
        )
    return None if label == NO_LABEL else label


def _classes(train: _Items) -> tuple[tuple[str, ...], dict[int | str | None, int]]:
    """The classes' names, and the number of each label."""
    names = train.classes
    if names is not None:
        numbers: dict[int | str | None, int] = {number: number for number in range(len(names))}
        numbers |= {name: number for number, name in enumerate(names)}
        return tuple(printable(str(name)) for name in names), numbers
    labels = sorted({*train.labels} - {None}, key=lambda label: (isinstance(label, str), label))
    # 1 and "1" are one class: pandas reads a column of numbers and texts as both.
    texts = {text: number for number, text in enumerate(dict.fromkeys(map(str, labels)))}
    return tuple(map(printable, texts)), texts | {label: texts[str(label)] for label in labels}


def _declared(items: Any) -> Sequence[str] | None:
    """torchvision's `classes`, also of a torch Subset."""
    names = getattr(items, "classes", None)
    if isinstance(names, list | tuple) and names:
        return [str(name) for name in names]
    return _declared(items.dataset) if hasattr(items, "dataset") else None


def _named_as(train: _Items, test: _Items) -> _Items:
    """Test images labelled by class name where their numbers differ from the training set's."""
    names = test.classes
    if train.classes is None or names is None or list(names) == list(train.classes):
        return test
    by_number: dict[int | str | None, str] = dict(enumerate(names))
    return replace(test, labels=[by_number.get(label, label) for label in test.labels])


def _labels(read: _Items, numbers: Mapping[int | str | None, int]) -> Tensor:
    numbers = {None: UNLABELLED, **numbers}
    for position, label in enumerate(read.labels):
        if label not in numbers:
            raise ConfigError(
                f"dataset: {read.part} image {position}: its label {label!r} is no class of the "
                f"training images"
            )
    return torch.tensor([numbers[label] for label in read.labels])
