"""Supervised federated averaging: what labels would give.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from orchestra_flwr.config import Config, ConfigError, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods.base import Batch, Method, Role
from orchestra_flwr.models import Backbone, build_backbone

CROPPED = Recipe(jitter_p=0, gray_p=0, blur_p=0)


class SupervisedSettings(Section):
    """Options under `method.` for method=supervised."""

    classes: tuple[str, ...] | None = Field(None, min_length=2)


class Supervised(Method):
    """Backbone and a linear classifier.

    Raises:
        ConfigError: nothing says how many classes there are.
    """

    Settings = SupervisedSettings
    roles: ClassVar[Mapping[str, Role]] = {"backbone": Role.SHARED, "classifier": Role.SHARED}

    settings: SupervisedSettings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.class_names = tuple(sorted(set(self.settings.classes or ())))
        self.classes = len(self.class_names) or config.data.classes or 0
        if not self.classes:
            raise ConfigError(
                f"method.classes: must be given with data={config.data.name}, the names of the "
                "class folders: method.classes=[cat,dog]"
            )
        self.backbone = build_backbone(config.model, channels)
        self.classifier = nn.Linear(self.backbone.dim, self.classes)

    def recipes(self) -> Sequence[Recipe]:
        """Crop and flip."""
        return (CROPPED,)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of the classes."""
        assert batch.labels is not None
        predicted = self.classifier(self.backbone(batch.views[0]))
        return {"classification": F.cross_entropy(predicted, batch.labels)}

    def backbones(self) -> dict[str, Backbone]:
        """The one backbone."""
        return {"online": self.backbone}
