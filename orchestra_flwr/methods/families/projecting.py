"""Methods of a backbone and a projector that clients train and the server averages."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from orchestra_flwr.config import Config, ModelConfig
from orchestra_flwr.data import SIMCLR, Recipe
from orchestra_flwr.methods.families.one_backbone import OneBackbone
from orchestra_flwr.models import build_head

Features = tuple[Tensor, ...]  # (B, dim) of each view


class Projecting(OneBackbone):
    """A backbone and a projector, which is only used in training."""

    views: ClassVar[Sequence[Recipe]] = (SIMCLR, SIMCLR)
    has_projector = True

    projector: nn.Module

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.projector = self.build_projector(config.model)

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """(B, backbone.dim) to (B, `model.projector_dim`): two layers, the second with biases."""
        return build_head(model, self.backbone.dim, model.projector_dim, bias=True)

    def embed(self, views: Sequence[Tensor]) -> tuple[Features, Features]:
        """What backbone and projector make of each view, one after the other."""
        seen = [(feature := self.backbone(view), self.projector(feature)) for view in views]
        features, projections = zip(*seen, strict=True)
        return features, projections
