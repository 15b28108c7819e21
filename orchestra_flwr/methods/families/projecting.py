"""Methods of a backbone and a projector that clients train and the server averages."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from orchestra_flwr.config import Config, ModelConfig
from orchestra_flwr.data import SIMCLR, Recipe
from orchestra_flwr.methods import Method, Role, role_of
from orchestra_flwr.models import Backbone, build_backbone, build_head

Features = tuple[Tensor, ...]  # (B, dim) of each view


class Projecting(Method):
    """A backbone and a projector, which is only used in training.

    Class attributes:
        roles: of a subclass's own modules and buffers, by name; without an entry there is none.
        views: the augmentation of each view of a batch.
    """

    roles: ClassVar[Mapping[str, Role]] = {}
    views: ClassVar[Sequence[Recipe]] = (SIMCLR, SIMCLR)

    backbone: Backbone
    projector: nn.Module

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.backbone = build_backbone(config.model, channels)
        self.projector = self.build_projector(config.model)

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """(B, backbone.dim) to (B, `model.projector_dim`): two layers, the second with biases."""
        return build_head(model, self.backbone.dim, model.projector_dim, bias=True)

    def embed(self, views: Sequence[Tensor]) -> tuple[Features, Features]:
        """What backbone and projector make of each view, one after the other."""
        seen = [(feature := self.backbone(view), self.projector(feature)) for view in views]
        features, projections = zip(*seen, strict=True)
        return features, projections

    def role(self, name: str) -> Role:
        """Backbone and projector are averaged; a subclass says the rest in `roles`."""
        return role_of(name, {"backbone": Role.SHARED, "projector": Role.SHARED, **self.roles})

    def recipes(self) -> Sequence[Recipe]:
        """The views."""
        return self.views

    def backbones(self) -> dict[str, Backbone]:
        """The one backbone."""
        return {"online": self.backbone}
