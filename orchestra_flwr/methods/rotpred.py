"""RotPred: tell by how many quarter turns an image was rotated.

Gidaris et al., "Unsupervised Representation Learning by Predicting Image Rotations", ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import nn

from orchestra_flwr.config import Config
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods.base import Batch, Method, Step
from orchestra_flwr.methods.roles import Role, role_of
from orchestra_flwr.models import Backbone, build_backbone, build_head
from orchestra_flwr.models.precision import in_float32

cross_entropy = in_float32(F.cross_entropy)

TURNED = Recipe(crop_scale=None, flip=0, jitter_p=0, gray_p=0, blur_p=0, rotate=True)

ROLES = {
    "backbone": Role.SHARED,
    "projector": Role.SHARED,
    "rotation_head": Role.SHARED,
}


class RotPred(Method):
    """Backbone, a two-layer projector and a linear head for the four rotations."""

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        model, dim = config.model, config.model.projector_dim
        self.backbone = build_backbone(model, channels)
        self.projector = build_head(model, self.backbone.dim, dim, bias=True)
        self.rotation_head = nn.Linear(dim, 4)

    def role(self, name: str) -> Role:
        """As :meth:`Method.role`."""
        return role_of(name, ROLES)

    def recipes(self) -> Sequence[Recipe]:
        """The image as it is, turned."""
        return (TURNED,)

    def loss(self, batch: Batch) -> Step:
        """Cross-entropy of the rotation of each image."""
        (turns,) = batch.rotations
        assert turns is not None
        feature = self.backbone(batch.views[0])
        projection = self.projector(feature)
        rotation = cross_entropy(self.rotation_head(projection), turns)
        return Step({"rotation": rotation}, {"backbone": (feature,), "projector": (projection,)})

    def backbones(self) -> dict[str, Backbone]:
        """The one backbone."""
        return {"online": self.backbone}
