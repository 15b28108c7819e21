"""Supervised federated averaging: what labels would give.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import nn

from orchestra_flwr.config import Config
from orchestra_flwr.data import UNLABELLED, Recipe
from orchestra_flwr.methods.base import Batch, Classes, Method, Step
from orchestra_flwr.methods.labels import LabelSettings, configured_classes, required_classes
from orchestra_flwr.methods.roles import Role, role_of
from orchestra_flwr.methods.semi_supervised import label_loss
from orchestra_flwr.models import Backbone, build_backbone
from orchestra_flwr.models.precision import in_float32

cross_entropy = in_float32(F.cross_entropy)

CROPPED = Recipe(jitter_p=0, gray_p=0, blur_p=0)

ROLES = {"backbone": Role.SHARED, "classifier": Role.SHARED}


class Supervised(Method):
    """Backbone and a linear classifier. With `labels.fraction` unlabelled images teach nothing.

    Raises:
        ConfigError: nothing says how many classes there are.
    """

    Settings = LabelSettings
    has_projector = False
    learns_labels = True
    semi_supervised = True

    settings: LabelSettings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        classes = required_classes(config)
        self._some_labels = config.labels.fraction is not None
        self.backbone = build_backbone(config.model, channels)
        self.classifier = nn.Linear(self.backbone.dim, classes.count)

    @classmethod
    def classes(cls, config: Config) -> Classes | None:
        """As :func:`configured_classes`."""
        return configured_classes(config)

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
        if self._some_labels:
            labelled = batch.labels != UNLABELLED
            classification = label_loss(self.classifier, (feature,), batch.labels, labelled)
        else:
            classification = cross_entropy(self.classifier(feature), batch.labels)
        return Step({"classification": classification}, {"backbone": (feature,)})

    def classification_head(self) -> nn.Module:
        """The linear classifier."""
        return self.classifier

    def backbones(self) -> dict[str, Backbone]:
        """The one backbone."""
        return {"online": self.backbone}
