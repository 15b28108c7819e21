"""BYOL: predict the features that a slow copy of the encoder has for another view.

Grill et al., "Bootstrap Your Own Latent", NeurIPS 2020.
"""

from typing import ClassVar

from pydantic import Field
from torch import nn

from orchestra_flwr.config import Config, ModelConfig, Section
from orchestra_flwr.methods import Batch, Role, Step
from orchestra_flwr.methods.families import MomentumEncoder
from orchestra_flwr.methods.families.one_backbone import BYOL_VIEWS
from orchestra_flwr.methods.simsiam import symmetric_negative_cosine
from orchestra_flwr.models import build_head


class BYOL(MomentumEncoder):
    """Online encoder with a predictor, and a target encoder that follows it."""

    class Settings(Section):
        ema: float = Field(0.996, ge=0, lt=1)

    roles: ClassVar = {"predictor": Role.SHARED}
    views: ClassVar = BYOL_VIEWS

    settings: Settings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        model, dim = config.model, config.model.projector_dim
        self.predictor = build_head(
            model, dim, 2 * dim, bias=True, last_norm=False, plain_norm=True
        )
        self.add_target()

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """Two layers, the hidden one twice as wide, no norm at the end."""
        hidden = 2 * model.projector_dim
        return build_head(model, self.backbone.dim, hidden, last_norm=False, plain_norm=True)

    def loss(self, batch: Batch) -> Step:
        """Each view predicts the target's features of the other one."""
        features, projections = self.embed(batch.views)
        predictions = tuple(self.predictor(projection) for projection in projections)
        self.update_target(self.settings.ema)
        targets = self.target_projections(batch.views)
        return Step(
            {"similarity": symmetric_negative_cosine(predictions, targets)},
            {"backbone": features, "projector": projections, "predictor": predictions},
        )
