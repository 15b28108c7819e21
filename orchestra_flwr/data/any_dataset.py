"""Data sets of other libraries, torch's or Hugging Face's, as images in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.square_image import square_image

TEST_SPLITS = ("test", "validation", "valid", "val")  # the first that is there is used
NO_LABEL = -1  # in the data sets of torchvision and Hugging Face


def dataset_of(given: Any, name: str, size: int) -> Dataset:
    """The images of a data set, as training reads images of any kind (:func:`square_image`).

    Args:
        given: a data set; a pair of two, for training and testing; or a mapping with "train" and
            maybe "test" or "validation", as Hugging Face's DatasetDict. A data set gives, by
            number or one after another, images, pairs of an image and its label, or mappings with
            an image and maybe a label: torch's and torchvision's, Hugging Face's, tensors
            (N, C, H, W), arrays (N, H, W, C), lists. Labels are whole numbers or texts; -1 and
            None are none.
        name: what the result is called.
        size: height and width of its images in pixels.

    Raises:
        ConfigError: there is no image, one cannot be used, or labels do not fit together.
    """
    train_set, test_set = _splits(given)
    train = _read(train_set, "training", size)
    test = None if test_set is None else _read(test_set, "test", size)
    if not train.labelled:
        return Dataset(name, ImageSet(train.stacked))
    names, numbers = _classes(train_set, train)
    train_images = ImageSet(train.stacked, _labels(train, numbers), names)
    if test is None or not test.labelled:
        return Dataset(name, train_images)
    return Dataset(name, train_images, ImageSet(test.stacked, _labels(test, numbers), names))


@dataclass(frozen=True)
class _Items:
    """What a data set held; `labels` are as it had them, None for none."""

    part: str
    images: list[Tensor]
    labels: list[int | str | None]

    @property
    def stacked(self) -> Tensor:
        return torch.stack(self.images)

    @property
    def labelled(self) -> bool:
        """Whether all are labelled.

        Raises:
            ConfigError: some are, some are not.
        """
        bare = sum(label is None for label in self.labels)
        if 0 < bare < len(self.labels):
            raise ConfigError(
                f"dataset: {bare} of {len(self.labels)} {self.part} images have no label; "
                "all must have one, or none"
            )
        return bare == 0


def _splits(given: Any) -> tuple[Any, Any]:
    if isinstance(given, Mapping):
        if "train" not in given:
            raise ConfigError(
                f"dataset: must have a split named train, not only {', '.join(map(str, given))}"
            )
        return given["train"], next((given[s] for s in TEST_SPLITS if s in given), None)
    if isinstance(given, tuple):
        if len(given) != 2:
            raise ConfigError(f"dataset: must be one or a pair (train, test), not {len(given)}")
        return given
    return given, None


def _read(items: Any, part: str, size: int) -> _Items:
    read = _Items(part, [], [])
    for number, item in enumerate(_each(items, part)):
        image, label = _image_and_label(item, items)
        try:
            read.images.append(square_image(image, size))
            read.labels.append(_plain(label))
        except (OSError, TypeError, ValueError) as error:
            hint = (
                "; transforms must not normalise them" if "values of images" in str(error) else ""
            )
            raise ConfigError(f"dataset: {part} image {number}: {error}{hint}") from None
    if not read.images:
        raise ConfigError(f"dataset: there are no {part} images")
    return read


def _each(items: Any, part: str) -> Iterator[Any]:
    # Not every data set of torch ends an iteration by itself.
    if hasattr(items, "__len__") and hasattr(items, "__getitem__"):
        return (items[number] for number in range(len(items)))
    if isinstance(items, Iterable):
        return iter(items)
    raise ConfigError(f"dataset: the {part} images are no data set, but {type(items).__name__}")


def _image_and_label(item: Any, items: Any) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        image = next((key for key, value in item.items() if _is_image(value)), None)
        if image is None:
            raise ConfigError(f"dataset: no image among {', '.join(map(str, item))}")
        label = next((key for key in _label_columns(items, item) if key in item), None)
        return item[image], None if label is None else item[label]
    if isinstance(item, tuple | list):
        return (item[0], item[1]) if len(item) > 1 else (item[0], None)
    return item, None


def _is_image(value: Any) -> bool:
    return isinstance(value, Image.Image | Path) or (
        isinstance(value, np.ndarray | Tensor) and value.ndim in (2, 3)
    )


def _label_columns(items: Any, item: Iterable[Any]) -> list[Any]:
    """Where labels may be: columns of class labels, then those that are called so."""
    declared = [key for key in _features(items) if _class_names_of(items, key) is not None]
    return [*declared, *(key for key in item if "label" in str(key) or key in ("class", "target"))]


def _features(items: Any) -> Mapping[str, Any]:
    features = getattr(items, "features", None)
    return features if isinstance(features, Mapping) else {}


def _class_names_of(items: Any, column: str) -> Sequence[str] | None:
    return getattr(_features(items).get(column), "names", None)


def _plain(label: Any) -> int | str | None:
    """A label as a number or text of Python's own.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(label, Tensor | np.ndarray | np.generic) and len(label.reshape(-1)) == 1:
        label = label.item()
    if label is None or label == NO_LABEL:
        return None
    if isinstance(label, bool) or not isinstance(label, int | str):
        raise TypeError(f"its label must be a whole number or a text, not {label!r}"[:200])
    return label


def _classes(items: Any, train: _Items) -> tuple[tuple[str, ...], dict[int | str | None, int]]:
    """The classes' names, and the number of each label."""
    columns = (_class_names_of(items, key) for key in _features(items))
    names = next((found for found in columns if found is not None), None) or _declared(items)
    if names is not None:
        numbers: dict[int | str | None, int] = {number: number for number in range(len(names))}
        numbers |= {name: number for number, name in enumerate(names)}
        return tuple(printable(str(name)) for name in names), numbers
    found = sorted(set(train.labels), key=lambda label: (isinstance(label, str), label))
    return tuple(printable(str(label)) for label in found), {x: n for n, x in enumerate(found)}


def _declared(items: Any) -> Sequence[str] | None:
    """torchvision's `classes`, also of a torch Subset."""
    names = getattr(items, "classes", None)
    if isinstance(names, list | tuple) and names:
        return [str(name) for name in names]
    return _declared(items.dataset) if hasattr(items, "dataset") else None


def _labels(read: _Items, numbers: Mapping[int | str | None, int]) -> Tensor:
    for position, label in enumerate(read.labels):
        if label not in numbers:
            raise ConfigError(
                f"dataset: {read.part} image {position}: its label {label!r} is no class of the "
                f"training images"
            )
    return torch.tensor([numbers[label] for label in read.labels])
