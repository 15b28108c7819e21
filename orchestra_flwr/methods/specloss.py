"""SpecLoss: the spectral contrastive loss.

HaoChen et al., "Provable Guarantees for Self-Supervised Deep Learning with Spectral Contrastive
Loss", NeurIPS 2021, on cosine similarities as in the Orchestra paper (Table 8).
"""

from typing import ClassVar

from pydantic import Field
from torch import nn

from orchestra_flwr.config import Config, ModelConfig, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods import Batch, Role, Step
from orchestra_flwr.methods.families import Projecting
from orchestra_flwr.methods.spectral import spectral_contrastive_loss
from orchestra_flwr.models import build_head

# A plain crop, and a view with colour jitter, as published, except that the first one's crops are
# bilinear there; all crops here are bicubic.
VIEWS = (
    Recipe(crop_scale=(0.08, 1.0), jitter_p=0, gray_p=0, blur_p=0),
    Recipe(crop_scale=(0.2, 1.0), jitter=(0.4, 0.4, 0.4, 0.1)),
)


class SpecLoss(Projecting):
    """Backbone, a two-layer projector and a linear layer."""

    class Settings(Section):
        # Of the last layer; the Orchestra paper takes its G.
        outputs: int = Field(32, ge=2, le=2**17)

    roles: ClassVar = {"clusters": Role.SHARED}
    views: ClassVar = VIEWS

    settings: Settings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.clusters = nn.Linear(config.model.projector_dim, self.settings.outputs)

    def build_projector(self, model: ModelConfig) -> nn.Module:
        return build_head(model, self.backbone.dim, model.projector_dim)

    def loss(self, batch: Batch) -> Step:
        features, projections = self.embed(batch.views)
        first, second = (self.clusters(projection) for projection in projections)
        return Step(
            {"spectral": spectral_contrastive_loss(first, second, "sphere")},
            {"backbone": features, "projector": projections},
        )
