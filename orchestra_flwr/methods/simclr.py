"""SimCLR: two views of an image shall be closer than views of different images.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Config, Section
from orchestra_flwr.data import SIMCLR, Recipe
from orchestra_flwr.methods.base import Batch, Method, Step
from orchestra_flwr.methods.roles import Role, role_of
from orchestra_flwr.models import Backbone, build_backbone, build_head
from orchestra_flwr.models.precision import in_float32

ROLES = {"backbone": Role.SHARED, "projector": Role.SHARED}


@in_float32
def nt_xent_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Normalised temperature-scaled cross-entropy (SimCLR, equation 1), averaged over 2 B views.

    Args:
        first: (B, D) features of one view of every image; only their directions matter.
        second: (B, D) features of another view of the same images.
        temperature: tau, by which cosine similarities are divided.

    Returns:
        Scalar.
    """
    count = len(first)
    features = F.normalize(torch.cat([first, second]), dim=1)
    itself = torch.eye(2 * count, dtype=torch.bool, device=features.device)
    similarity = (features @ features.T / temperature).masked_fill(itself, -torch.inf)
    partner = torch.arange(2 * count, device=features.device).roll(count)
    return F.cross_entropy(similarity, partner)


class SimCLRSettings(Section):
    """Options under `method.` for method=simclr."""

    temperature: float = Field(0.1, gt=0)


class SimCLR(Method):
    """Backbone and a two-layer projector."""

    Settings = SimCLRSettings

    settings: SimCLRSettings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        model = config.model
        self.backbone = build_backbone(model, channels)
        self.projector = build_head(model, self.backbone.dim, model.projector_dim, bias=True)

    def role(self, name: str) -> Role:
        """As :meth:`Method.role`."""
        return role_of(name, ROLES)

    def recipes(self) -> Sequence[Recipe]:
        """The same augmentation for both views."""
        return (SIMCLR, SIMCLR)

    def loss(self, batch: Batch) -> Step:
        """The contrastive loss of one step."""
        seen = [(feature := self.backbone(view), self.projector(feature)) for view in batch.views]
        features, projections = zip(*seen, strict=True)
        first, second = projections
        contrastive = nt_xent_loss(first, second, self.settings.temperature)
        return Step({"contrastive": contrastive}, {"backbone": features, "projector": projections})

    def backbones(self) -> dict[str, Backbone]:
        """The one backbone."""
        return {"online": self.backbone}
