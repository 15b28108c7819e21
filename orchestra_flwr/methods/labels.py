"""Labels for the methods that learn from them, numbered alike on all clients."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import field_validator
from torch import Tensor, nn

from orchestra_flwr.config import Config, ConfigError, Section
from orchestra_flwr.data import UNLABELLED, ImageSet
from orchestra_flwr.seeding import numpy_generator


class LabelSettings(Section):
    """Options under `method.` of every method that can learn from labels."""

    classes: tuple[str, ...] | None = None  # names of two or more

    @field_validator("classes")
    @classmethod
    def _differ(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and len({*value}) < 2:
            raise ValueError(f"method.classes=[{','.join(value)}]: must name two classes or more")
        return value


class LearnsLabels(ABC):
    """Can learn from labels, of all images or of a share (`labels.fraction`).

    Class attributes:
        Settings: derived from :class:`LabelSettings`.
        needs_labels: whether the method cannot do without labels.
    """

    Settings: ClassVar[type[Section]] = LabelSettings
    needs_labels: ClassVar[bool] = False

    @abstractmethod
    def classification_head(self) -> nn.Module | None:
        """The module that makes (B, K) logits of the first backbone's (B, dim) features.

        It is evaluated as it is, beside the probes. None: the method sees no labels in this run.
        """


@dataclass(frozen=True)
class Classes:
    """The classes that a method learns from."""

    count: int  # how many there are
    names: tuple[str, ...] = ()  # in the order of their labels; (): as the data set numbers them


def sees_labels(config: Config) -> bool:
    """Whether the method sees labels in this run."""
    plugin = config.method.plugin
    if not issubclass(plugin, LearnsLabels):
        return False
    return plugin.needs_labels or config.labels.fraction is not None


def classes_of(config: Config) -> Classes | None:
    """The classes that `method.classes` names, else as many as the data set has.

    None: the method sees no labels in this run, or its classes are not known yet.
    """
    if not sees_labels(config):
        return None
    names = tuple(sorted(set(config.method.settings.classes or ())))
    count = len(names) or config.data.classes
    return Classes(count, names) if count else None


def required_classes(config: Config) -> Classes:
    """:func:`classes_of`, of a method that sees labels.

    Raises:
        ConfigError: nothing says how many classes there are.
    """
    classes = classes_of(config)
    if classes is None:
        raise ConfigError(
            f"method.classes: must be given with data={config.data.name}, the names of the "
            "class folders: method.classes=[cat,dog]"
        )
    return classes


def labels_for(config: Config, images: ImageSet) -> Tensor | None:
    """(N,) int64 labels as the run's method numbers its classes; None if it needs none.

    A client may hold only some of the classes: where the method's classes have names, labels are
    renumbered by name. With `labels.fraction` images may be UNLABELLED.

    Raises:
        ConfigError: there are no labels, or the classes differ from the method's.
    """
    if not sees_labels(config):
        return None
    classes = classes_of(config)
    labels = _labels_of(config, images)
    count, names = (classes.count, classes.names) if classes else (len(images.classes), ())
    if not names:
        if images.labels is not None and len(images.classes) != count:
            raise ConfigError(
                f"method.classes: the images have {len(images.classes)} classes instead of "
                f"{count}; name them all, method.classes=[cat,dog]"
            )
        return labels
    number = {name: label for label, name in enumerate(names)}
    unknown = [name for name in images.classes if name not in number]
    if unknown:
        raise ConfigError(
            f"method.classes=[{','.join(names)}]: must hold all classes of the "
            f"images, {unknown[0]} is missing"
        )
    numbers = [*(number[name] for name in images.classes), UNLABELLED]  # the last one is [-1]
    return torch.tensor(numbers, device=labels.device)[labels]


def _labels_of(config: Config, images: ImageSet) -> Tensor:
    """The images' labels; UNLABELLED ones only where the run allows them."""
    labels, fraction = images.labels, config.labels.fraction
    if fraction is not None:
        unlabelled = torch.full((len(images),), UNLABELLED, device=images.images.device)
        return unlabelled if labels is None else labels
    if labels is None:
        raise ConfigError(
            f"method={config.method.name}: learns from labels, and the images "
            f"{_instead_of_labels(images)}; put them into class folders (at least two), or give "
            "their labels in a table"
        )
    if missing := int((labels == UNLABELLED).sum()):
        raise ConfigError(
            f"method={config.method.name}: {missing} of the images have no label; only with "
            "labels.fraction=1 may some be unlabelled"
        )
    return labels


def check_any_labels(config: Config, images: ImageSet) -> None:
    """Refuses `labels.fraction` in a simulation in which no image has a label.

    A real client may have none: others may have some.

    Raises:
        ConfigError: says so.
    """
    fraction = config.labels.fraction
    if fraction is not None and images.labels is None:
        raise ConfigError(
            f"labels.fraction={fraction:g}: must be null: it is a share of the labels, and the "
            f"images {_instead_of_labels(images)}"
        )


def _instead_of_labels(images: ImageSet) -> str:
    return "have none" if images.tags is None else "may have several each"


def shown_labels(config: Config, labels: Tensor, client: str) -> Tensor:
    """A client's labels with all but `labels.fraction` of them hidden, the same in every round.

    Drawn from (seed, client) alone, regardless of classes; at least one label is shown. A larger
    fraction shows all labels of a smaller one.

    Args:
        labels: (n,) int64, UNLABELLED where there is no label.
        client: the name of the client that holds them.

    Returns:
        (n,) int64, UNLABELLED in place of what is hidden.
    """
    fraction = config.labels.fraction
    labelled = (labels != UNLABELLED).nonzero().squeeze(1)
    if fraction is None or not len(labelled):
        return labels
    count = max(1, round(fraction * len(labelled)))
    order = numpy_generator(config.seed, "labels", client).permutation(len(labelled))
    shown = labelled[torch.from_numpy(order[:count]).to(labelled.device)]
    hidden = torch.full_like(labels, UNLABELLED)
    hidden[shown] = labels[shown]
    return hidden


def with_class_names(config: Config, names: tuple[str, ...]) -> Config:
    """The configuration with the class names of a simulation's images, where the method needs them.

    In deployments they must be configured: no client need hold all classes.
    """
    if not sees_labels(config) or classes_of(config) is not None or not names:
        return config
    method = config.method.model_copy(update={"classes": list(names)})
    return config.model_copy(update={"method": method})
