"""Methods that learn classes: a backbone and a linear classifier, both averaged."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import nn

from orchestra_flwr.config import Config
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods import LearnsLabels, Method, Role, role_of
from orchestra_flwr.methods.base import PROJECTOR_KEYS
from orchestra_flwr.methods.labels import LabelSettings, required_classes
from orchestra_flwr.models import Backbone, build_backbone


class Classifying(LearnsLabels, Method):
    """A backbone, and a linear classifier of its features; there is no projector.

    Class attributes:
        roles: of a subclass's own modules and buffers, by name; without an entry there is none.
        views: the augmentation of each view of a batch.

    Raises:
        ConfigError: nothing says how many classes there are.
    """

    needs_labels = True
    roles: ClassVar[Mapping[str, Role]] = {}
    views: ClassVar[Sequence[Recipe]]

    settings: LabelSettings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        count = required_classes(config).count
        self.backbone = build_backbone(config.model, channels)
        self.classifier = nn.Linear(self.backbone.dim, count)

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Without a projector its keys are not read."""
        why = f"by method={config.method.name}"
        return super().unread(config) | dict.fromkeys(PROJECTOR_KEYS, why)

    def role(self, name: str) -> Role:
        """Backbone and classifier are averaged; a subclass says the rest in `roles`."""
        return role_of(name, {"backbone": Role.SHARED, "classifier": Role.SHARED, **self.roles})

    def recipes(self) -> Sequence[Recipe]:
        """The views."""
        return self.views

    def classification_head(self) -> nn.Module:
        """The linear classifier."""
        return self.classifier

    def backbones(self) -> dict[str, Backbone]:
        """The one backbone."""
        return {"online": self.backbone}
