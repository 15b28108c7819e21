"""Labels for the methods that learn from them, in the numbers that all clients share."""

from __future__ import annotations

import torch
from torch import Tensor

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import ImageSet
from orchestra_flwr.methods.base import Method


def labels_for(method: Method, images: ImageSet) -> Tensor | None:
    """(N,) int64 labels as the method numbers its classes; None if it needs none.

    A client may hold images of some of the classes only, and numbers them in its own way: where
    the method's classes have names, these decide.

    Raises:
        ConfigError: there are no labels, or the classes are others than the method's.
    """
    if not method.needs_labels:
        return None
    if images.labels is None:
        raise ConfigError(
            "method: this one learns from labels, and the images have none: they must lie in "
            "class folders, at least two of them"
        )
    if not method.class_names:
        if len(images.classes) != method.classes:
            raise ConfigError(
                f"method.classes: the images have {len(images.classes)} classes instead of "
                f"{method.classes}; name them all, method.classes=[cat,dog]"
            )
        return images.labels
    number = {name: label for label, name in enumerate(method.class_names)}
    unknown = [name for name in images.classes if name not in number]
    if unknown:
        raise ConfigError(
            f"method.classes=[{','.join(method.class_names)}]: must hold all classes of the "
            f"images, {unknown[0]} is missing"
        )
    return torch.tensor([number[n] for n in images.classes], device=images.labels.device)[
        images.labels
    ]
