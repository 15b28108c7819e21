"""SimSiam: predict the features of another view of the image, which get no gradient.

Chen and He, "Exploring Simple Siamese Representation Learning", CVPR 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.data import SIMCLR, Recipe
from orchestra_flwr.methods.base import Batch, Method, Step
from orchestra_flwr.methods.roles import Role, role_of
from orchestra_flwr.models import Backbone, build_backbone, build_head
from orchestra_flwr.models.precision import in_float32

ROLES = {
    "backbone": Role.SHARED,
    "projector": Role.SHARED,
    "predictor": Role.SHARED,
}


@in_float32
def symmetric_negative_cosine(predictions: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """D(p1, z2) / 2 + D(p2, z1) / 2 with the negative cosine D (SimSiam, equations 1 and 4).

    Args:
        predictions: (B, D) of each of the two views; only their directions matter.
        targets: (B, D) of each of the two views; no gradient goes through them.

    Returns:
        Scalar mean over the batch, from -1 (each predicts the other) to 1.
    """
    (p1, p2), (z1, z2) = predictions, targets
    cosines = F.cosine_similarity(p1, z2.detach()) + F.cosine_similarity(p2, z1.detach())
    return -cosines.mean() / 2


class SimSiam(Method):
    """Backbone, a three-layer projector and a predictor of two layers."""

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        model, dim = config.model, config.model.projector_dim
        self.backbone = build_backbone(model, channels)
        hidden = (dim // 2, dim // 2)
        self.projector = build_head(model, self.backbone.dim, *hidden, plain_norm=True)
        self.predictor = build_head(model, dim, dim, bias=True, last_norm=False, plain_norm=True)

    def role(self, name: str) -> Role:
        """As :meth:`Method.role`."""
        return role_of(name, ROLES)

    def recipes(self) -> Sequence[Recipe]:
        """The same augmentation for both views."""
        return (SIMCLR, SIMCLR)

    def loss(self, batch: Batch) -> Step:
        """Each view predicts the other one."""
        seen = [(feature := self.backbone(view), self.projector(feature)) for view in batch.views]
        features, projections = zip(*seen, strict=True)
        predictions = tuple(self.predictor(projection) for projection in projections)
        return Step(
            {"similarity": symmetric_negative_cosine(predictions, projections)},
            {"backbone": features, "projector": projections, "predictor": predictions},
        )

    def backbones(self) -> dict[str, Backbone]:
        """The one backbone."""
        return {"online": self.backbone}
