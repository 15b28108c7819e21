"""RotPred: tell by how many quarter turns an image was rotated.

Gidaris et al., "Unsupervised Representation Learning by Predicting Image Rotations", ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from orchestra_flwr.config import Config, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods.base import Batch, Method, Role
from orchestra_flwr.models import Backbone, build_backbone, mlp

TURNED = Recipe(crop_scale=None, flip=0, jitter_p=0, gray_p=0, blur_p=0, rotate=True)


class RotPred(Method):
    """Backbone, a two-layer projector and a linear head for the four rotations."""

    Settings = Section
    roles: ClassVar[Mapping[str, Role]] = {
        "backbone": Role.SHARED,
        "projector": Role.SHARED,
        "rotation_head": Role.SHARED,
    }

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        dim = config.model.projector_dim
        self.backbone = build_backbone(config.model, channels)
        self.projector = mlp(self.backbone.dim, dim, dim, bias=True)
        self.rotation_head = nn.Linear(dim, 4)

    def recipes(self) -> Sequence[Recipe]:
        """The image as it is, turned."""
        return (TURNED,)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of the rotation of each image."""
        (turns,) = batch.rotations
        assert turns is not None
        predicted = self.rotation_head(self.projector(self.backbone(batch.views[0])))
        return {"rotation": F.cross_entropy(predicted, turns)}

    def backbones(self) -> dict[str, Backbone]:
        """The one backbone."""
        return {"online": self.backbone}
