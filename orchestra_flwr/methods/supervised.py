"""Supervised federated averaging: what labels would give.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from pydantic import Field
from torch import nn

from orchestra_flwr.config import Config, ConfigError, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods.base import Batch, Classes, Method, Step
from orchestra_flwr.methods.roles import Role, role_of
from orchestra_flwr.models import Backbone, build_backbone
from orchestra_flwr.models.precision import in_float32

cross_entropy = in_float32(F.cross_entropy)

CROPPED = Recipe(jitter_p=0, gray_p=0, blur_p=0)

ROLES = {"backbone": Role.SHARED, "classifier": Role.SHARED}


class SupervisedSettings(Section):
    """Options under `method.` for method=supervised."""

    classes: tuple[str, ...] | None = Field(None, min_length=2)


class Supervised(Method):
    """Backbone and a linear classifier.

    Raises:
        ConfigError: nothing says how many classes there are.
    """

    has_projector = False
    Settings = SupervisedSettings
    learns_labels = True

    settings: SupervisedSettings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        classes = self.classes(config)
        if classes is None:
            raise ConfigError(
                f"method.classes: must be given with data={config.data.name}, the names of the "
                "class folders: method.classes=[cat,dog]"
            )
        self.backbone = build_backbone(config.model, channels)
        self.classifier = nn.Linear(self.backbone.dim, classes.count)

    @classmethod
    def classes(cls, config: Config) -> Classes | None:
        """Those that `method.classes` names, else as many as the data set has."""
        names = tuple(sorted(set(config.method.settings.classes or ())))
        count = len(names) or config.data.classes
        return Classes(count, names) if count else None

    def role(self, name: str) -> Role:
        """As :meth:`Method.role`."""
        return role_of(name, ROLES)

    def recipes(self) -> Sequence[Recipe]:
        """Crop and flip."""
        return (CROPPED,)

    def loss(self, batch: Batch) -> Step:
        """Cross-entropy of the classes."""
        assert batch.labels is not None
        feature = self.backbone(batch.views[0])
        classification = cross_entropy(self.classifier(feature), batch.labels)
        return Step({"classification": classification}, {"backbone": (feature,)})

    def classification_head(self) -> nn.Module:
        """The linear classifier."""
        return self.classifier

    def backbones(self) -> dict[str, Backbone]:
        """The one backbone."""
        return {"online": self.backbone}
