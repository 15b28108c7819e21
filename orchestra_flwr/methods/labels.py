"""Labels for the methods that learn from them, in the numbers that all clients share."""

from __future__ import annotations

import torch
from torch import Tensor

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.data import ImageSet
from orchestra_flwr.methods.base import Classes


def labels_for(config: Config, images: ImageSet) -> Tensor | None:
    """(N,) int64 labels as the run's method numbers its classes; None if it needs none.

    A client may hold images of some of the classes only, and numbers them in its own way: where
    the method's classes have names, these decide.

    Raises:
        ConfigError: there are no labels, or the classes are others than the method's.
    """
    if not config.method.plugin.learns_labels:
        return None
    if images.labels is None:
        raise ConfigError(
            "method: this one learns from labels, and the images have none: they must lie in "
            "class folders, at least two of them"
        )
    classes: Classes | None = config.method.plugin.classes(config)
    count, names = (classes.count, classes.names) if classes else (len(images.classes), ())
    if not names:
        if len(images.classes) != count:
            raise ConfigError(
                f"method.classes: the images have {len(images.classes)} classes instead of "
                f"{count}; name them all, method.classes=[cat,dog]"
            )
        return images.labels
    number = {name: label for label, name in enumerate(names)}
    unknown = [name for name in images.classes if name not in number]
    if unknown:
        raise ConfigError(
            f"method.classes=[{','.join(names)}]: must hold all classes of the "
            f"images, {unknown[0]} is missing"
        )
    return torch.tensor([number[n] for n in images.classes], device=images.labels.device)[
        images.labels
    ]


def with_class_names(config: Config, names: tuple[str, ...]) -> Config:
    """The configuration with the names of the images' classes, where a method has to know them.

    A simulation has all images. Real clients hold some of the classes, so theirs are configured.
    """
    plugin = config.method.plugin
    if not plugin.learns_labels or plugin.classes(config) is not None or not names:
        return config
    method = config.method.model_copy(update={"classes": list(names)})
    return config.model_copy(update={"method": method})
