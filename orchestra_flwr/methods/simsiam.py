"""SimSiam: predict the features of another view of the image, which get no gradient.

Chen and He, "Exploring Simple Siamese Representation Learning", CVPR 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from orchestra_flwr.config import Config
from orchestra_flwr.data import SIMCLR, Recipe
from orchestra_flwr.methods.base import Batch, Classes, Method, Step
from orchestra_flwr.methods.labels import LabelSettings, configured_classes
from orchestra_flwr.methods.roles import Role, role_of
from orchestra_flwr.methods.semi_supervised import Part, build_classifier, losses_with_labels
from orchestra_flwr.models import Backbone, build_backbone, build_head
from orchestra_flwr.models.precision import in_float32

ROLES = {
    "backbone": Role.SHARED,
    "projector": Role.SHARED,
    "predictor": Role.SHARED,
    "classifier": Role.SHARED,
}


@in_float32
def symmetric_negative_cosine(
    predictions: Sequence[Tensor], targets: Sequence[Tensor], part: Part | None = None
) -> Tensor:
    """D(p1, z2) / 2 + D(p2, z1) / 2 with the negative cosine D (SimSiam, equations 1 and 4).

    Args:
        predictions: (B, D) of each of the two views; only their directions matter.
        targets: (B, D) of each of the two views; no gradient goes through them.
        part: the images that it is about; None: all of the batch.

    Returns:
        Scalar mean over the batch, from -1 (each predicts the other) to 1.
    """
    (p1, p2), (z1, z2) = predictions, targets
    cosines = F.cosine_similarity(p1, z2.detach()) + F.cosine_similarity(p2, z1.detach())
    if part is not None:
        cosines = cosines * part.images
    return -cosines.mean() / 2


class SimSiam(Method):
    """Backbone, a three-layer projector and a predictor of two layers; a classifier with labels."""

    Settings = LabelSettings
    semi_supervised = True

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        model, dim = config.model, config.model.projector_dim
        self.backbone = build_backbone(model, channels)
        hidden = (dim // 2, dim // 2)
        self.projector = build_head(model, self.backbone.dim, *hidden, plain_norm=True)
        self.predictor = build_head(model, dim, dim, bias=True, last_norm=False, plain_norm=True)
        self.classifier = build_classifier(config, self.backbone.dim)

    @classmethod
    def classes(cls, config: Config) -> Classes | None:
        """As :func:`configured_classes`."""
        return configured_classes(config)

    def role(self, name: str) -> Role:
        """As :meth:`Method.role`."""
        return role_of(name, ROLES)

    def recipes(self) -> Sequence[Recipe]:
        """The same augmentation for both views."""
        return (SIMCLR, SIMCLR)

    def loss(self, batch: Batch) -> Step:
        """Each view predicts the other one; with labels as :mod:`.semi_supervised` says."""
        seen = [(feature := self.backbone(view), self.projector(feature)) for view in batch.views]
        features, projections = zip(*seen, strict=True)
        predictions = tuple(self.predictor(projection) for projection in projections)
        similarity = partial(symmetric_negative_cosine, predictions, projections)
        return Step(
            losses_with_labels("similarity", similarity, self.classifier, features, batch.labels),
            {"backbone": features, "projector": projections, "predictor": predictions},
        )

    def classification_head(self) -> nn.Module | None:
        """The linear classifier, where there are labels."""
        return self.classifier

    def backbones(self) -> dict[str, Backbone]:
        """The one backbone."""
        return {"online": self.backbone}
