"""Labels for the methods that learn from them, in the numbers that all clients share."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Config, ConfigError, Section
from orchestra_flwr.data import UNLABELLED, ImageSet
from orchestra_flwr.methods.base import Classes
from orchestra_flwr.seeding import numpy_generator


class LabelSettings(Section):
    """Options under `method.` of every method that can learn from labels."""

    classes: tuple[str, ...] | None = Field(None, min_length=2)


def configured_classes(config: Config) -> Classes | None:
    """The classes that `method.classes` names, else as many as the data set has.

    None: the method sees no labels in this run, or its classes are not known yet.
    """
    if not config.method.plugin.sees_labels(config):
        return None
    names = tuple(sorted(set(config.method.settings.classes or ())))
    count = len(names) or config.data.classes
    return Classes(count, names) if count else None


def required_classes(config: Config) -> Classes:
    """:func:`configured_classes`, of a method that sees labels.

    Raises:
        ConfigError: nothing says how many classes there are.
    """
    classes = configured_classes(config)
    if classes is None:
        raise ConfigError(
            f"method.classes: must be given with data={config.data.name}, the names of the "
            "class folders: method.classes=[cat,dog]"
        )
    return classes


def labels_for(config: Config, images: ImageSet) -> Tensor | None:
    """(N,) int64 labels as the run's method numbers its classes; None if it needs none.

    A client may hold images of some of the classes only, and numbers them in its own way: where
    the method's classes have names, these decide. With `labels.fraction` images may be UNLABELLED.

    Raises:
        ConfigError: there are no labels, or the classes are others than the method's.
    """
    if not config.method.plugin.sees_labels(config):
        return None
    classes: Classes | None = config.method.plugin.classes(config)
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
    """The images' own labels, as far as the run allows that some have none."""
    labels, fraction = images.labels, config.labels.fraction
    if fraction is not None:
        nobody = torch.full((len(images),), UNLABELLED, device=images.images.device)
        return nobody if labels is None else labels
    if labels is None:
        raise ConfigError(
            "method: this one learns from labels, and the images have none: they must lie in "
            "class folders, at least two of them"
        )
    if missing := int((labels == UNLABELLED).sum()):
        raise ConfigError(
            f"method={config.method.name}: {missing} of the images lie outside of class folders "
            "and have no label; methods for that take labels.fraction=1"
        )
    return labels


def shown_labels(config: Config, labels: Tensor, client: str) -> Tensor:
    """A client's labels with all but `labels.fraction` of them hidden, the same in every round.

    Which ones are shown is drawn from (seed, client) alone, whatever their classes. At least one
    is; a larger fraction shows what a smaller one does, and more.

    Args:
        config: of the run.
        labels: (n,) int64, UNLABELLED where there is no label.
        client: whose they are, by name.

    Returns:
        (n,) int64, UNLABELLED in place of what is hidden.
    """
    fraction = config.labels.fraction
    known = (labels != UNLABELLED).nonzero().squeeze(1)
    if fraction is None or not len(known):
        return labels
    count = max(1, round(fraction * len(known)))
    order = numpy_generator(config.seed, "labels", client).permutation(len(known))
    shown = known[torch.from_numpy(order[:count]).to(known.device)]
    hidden = torch.full_like(labels, UNLABELLED)
    hidden[shown] = labels[shown]
    return hidden


def with_class_names(config: Config, names: tuple[str, ...]) -> Config:
    """The configuration with the names of the images' classes, where a method has to know them.

    A simulation has all images. Real clients hold some of the classes, so theirs are configured.
    """
    plugin = config.method.plugin
    if not plugin.sees_labels(config) or plugin.classes(config) is not None or not names:
        return config
    method = config.method.model_copy(update={"classes": list(names)})
    return config.model_copy(update={"method": method})
