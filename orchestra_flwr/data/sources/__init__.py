"""The data sets that `data.name` can choose: one file each."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch

from orchestra_flwr.config import ConfigError, DataConfig, Plugin
from orchestra_flwr.data.images import UNLABELLED, Dataset
from orchestra_flwr.data.subset import limited, stratified_share


class Source(Plugin, ABC):
    """Where the images come from.

    `load` gives the same images for every seed, of `data.image_size` pixels, and at most
    `data.train_limit` and `data.test_limit` of them. Large libraries are imported in `load`:
    every process imports the module.

    Class attributes:
        channels: colour channels of an image, 1 or 3.
        classes: number of classes; None where it depends on the images.
        max_turn: degrees by which an image can be turned without changing its meaning.

    Attributes:
        listed: `load` may call it before it decodes images, with their labels and files but without
            pixels, (N, C, 0, 0), so that what these rule out is refused early.
        without_labels: what to do about images that have none; `load` may set it.

    Args:
        settings: the source's own options, an object of its `Settings`.
        data: the options that all sources have.
    """

    channels: ClassVar[int] = 3
    classes: ClassVar[int | None] = None
    max_turn: ClassVar[float] = 360.0
    without_labels: str = "they must lie in class folders, or a table must have their labels"

    def __init__(self, settings: Any, data: DataConfig) -> None:
        self.settings = settings
        self.data = data
        self.listed: Callable[[Dataset], None] = lambda dataset: None

    @abstractmethod
    def load(self) -> Dataset:
        """Reads the images.

        Raises:
            ConfigError: the images are missing or cannot be used; one line says what to do.
        """

    @classmethod
    def survey(cls, data: DataConfig) -> tuple[int, int, int] | None:
        """Training images, how many have labels, and labelled test images, before they are read.

        None: not known.

        Raises:
            ConfigError: they are missing or cannot be used.
        """
        return None

    @classmethod
    def label(cls, settings: Any) -> str:
        """A name of these images, for figures and file names; "": the source's name."""
        return ""


def within_limits(data: DataConfig, images: int, labelled: int, tests: int) -> tuple[int, int, int]:
    """What :meth:`Source.survey` returns, of so many images."""
    limit, test_limit = data.train_limit or images, data.test_limit or tests
    return min(images, limit), min(labelled, limit), min(tests, test_limit)


def load_dataset(
    config: DataConfig, listed: Callable[[Dataset], None] = lambda dataset: None
) -> Dataset:
    """Loads the images that the configuration names, the same ones for every run seed.

    Args:
        listed: is called before they are decoded, as far as the source can (:class:`Source`).

    Raises:
        ConfigError: as :meth:`Source.load`, or they are not what their source declares.
    """
    source: Source = config.build(config)
    source.listed = lambda dataset: listed(_with_test_images(dataset, config, source))
    dataset = source.load()
    config.check_returned("load", dataset, isinstance(dataset, Dataset), "a Dataset")
    actual = (dataset.channels, dataset.image_size)
    if actual != (source.channels, config.image_size):
        raise ConfigError(
            f"data={config.name}: {type(source).__name__} must give images of {source.channels} "
            f"channels and {config.image_size} pixels, not of {actual[0]} and {actual[1]}"
        )
    for part in filter(None, (dataset.train, dataset.test)):
        labels = torch.empty(0) if part.labels is None else part.labels
        if len(labels) and not UNLABELLED <= labels.min() <= labels.max() < len(part.classes):
            raise ConfigError(
                f"data={config.name}: {type(source).__name__} must give labels from {UNLABELLED} "
                f"to {len(part.classes) - 1}, positions in classes"
            )
    return _with_test_images(dataset, config, source)


def _with_test_images(dataset: Dataset, config: DataConfig, source: Source) -> Dataset:
    """Makes test images of `data.test_share` of each class's labelled training images."""
    train, share = dataset.train, config.test_share
    if share is None:
        return dataset
    if dataset.test is not None:
        raise ConfigError(
            f"data.test_share={share:g}: must not be given, data={config.name} has test images"
        )
    if train.targets is None:
        raise ConfigError(
            f"data.test_share={share:g}: the images have no labels to test with; "
            f"{source.without_labels}"
        )
    # Images with several labels are all alike here.
    labels = torch.zeros(len(train)).long() if train.labels is None else train.labels
    labelled = (labels != UNLABELLED).nonzero().squeeze(1)
    test = labelled[stratified_share(labels[labelled].numpy(), share)]
    if not len(test):
        raise ConfigError(f"data.test_share={share:g}: is no image of any class; must be larger")
    rest = torch.ones(len(train), dtype=torch.bool)
    rest[test] = False
    return replace(
        dataset,
        train=train.select(rest.nonzero().squeeze(1)),
        test=limited(replace(train.select(test), files=()), config.test_limit),
    )
