"""SimSiam: predict the features of another view of the image, which get no gradient.

Chen and He, "Exploring Simple Siamese Representation Learning", CVPR 2021.
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from orchestra_flwr.config import Config, ModelConfig
from orchestra_flwr.methods import Batch, Role, Step
from orchestra_flwr.methods.families import SomeLabels
from orchestra_flwr.methods.labels import LabelSettings
from orchestra_flwr.methods.semi_supervised import WHOLE_BATCH, Group, losses_with_labels
from orchestra_flwr.models import build_head


def symmetric_negative_cosine(
    predictions: Sequence[Tensor], targets: Sequence[Tensor], group: Group = WHOLE_BATCH
) -> Tensor:
    """D(p1, z2) / 2 + D(p2, z1) / 2 with the negative cosine D (SimSiam, equations 1 and 4).

    Args:
        predictions: (B, D) of each of the two views; only their directions matter.
        targets: (B, D) of each of the two views; no gradient goes through them.
        group: the images of the mean.

    Returns:
        Scalar mean over the batch, from -1 (each predicts the other) to 1.
    """
    (p1, p2), (z1, z2) = predictions, targets
    cosines = F.cosine_similarity(p1, z2.detach()) + F.cosine_similarity(p2, z1.detach())
    if group.weights is not None:
        cosines = cosines * group.weights
    return -cosines.mean() / 2


class SimSiam(SomeLabels):
    """Backbone, a three-layer projector and a predictor of two layers; a classifier with labels."""

    class Settings(LabelSettings):
        # Width of the predictor's hidden layer; None: model.projector_hidden, or as published.
        predictor_hidden: int | None = Field(None, ge=1, le=2**17)

    roles: ClassVar = {"predictor": Role.SHARED}

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        model, dim = config.model, config.model.projector_dim
        width = config.method.settings.predictor_hidden
        if width is not None:
            model = model.model_copy(update={"projector_hidden": width})
        self.predictor = build_head(model, dim, dim, bias=True, last_norm=False, plain_norm=True)
        self.add_classifier(config)

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """Three layers, the hidden ones half as wide."""
        hidden = (model.projector_dim // 2, model.projector_dim // 2)
        return build_head(model, self.backbone.dim, *hidden, plain_norm=True)

    def loss(self, batch: Batch) -> Step:
        """Each view predicts the other one; with labels as :mod:`.semi_supervised` says."""
        features, projections = self.embed(batch.views)
        predictions = tuple(self.predictor(projection) for projection in projections)
        similarity = partial(symmetric_negative_cosine, predictions, projections)
        return Step(
            losses_with_labels("similarity", similarity, self.classifier, features, batch.labels),
            {"backbone": features, "projector": projections, "predictor": predictions},
        )
