"""SimCLR: two views of an image shall be closer than views of different images.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from orchestra_flwr.config import ModelConfig, Section
from orchestra_flwr.methods.base import Step
from orchestra_flwr.methods.frames import JointEmbedding
from orchestra_flwr.models import build_head
from orchestra_flwr.models.precision import in_float32


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


@in_float32
def info_nce_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """InfoNCE: which of the other views is of the same image? Averaged over both directions.

    Equation 14 of the mutual-information paper (ICLR 2024, arXiv 2405.02081) and its mirror image,
    as cross-entropies: log B less is minus the bound of the information that two views share.
    Candidates are the B other views of the batch; NT-Xent has the views on the own side as well.

    Args:
        first: (B, D) features of one view of every image; only their directions matter.
        second: (B, D) features of another view of the same images.
        temperature: tau, by which cosine similarities are divided.

    Returns:
        Scalar; log B for features that are all alike.
    """
    similarity = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T / temperature
    same = torch.arange(len(first), device=similarity.device)
    return (F.cross_entropy(similarity, same) + F.cross_entropy(similarity.T, same)) / 2


class SimCLRSettings(Section):
    """Options under `method.` for method=simclr."""

    temperature: float = Field(0.1, gt=0)
    loss: Literal["nt_xent", "infonce"] = "nt_xent"


class SimCLR(JointEmbedding):
    """Backbone and a two-layer projector."""

    Settings = SimCLRSettings

    settings: SimCLRSettings

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """Two layers, the second one with biases."""
        return build_head(model, self.backbone.dim, model.projector_dim, bias=True)

    def compare(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:
        """The contrastive loss of one step."""
        loss = info_nce_loss if self.settings.loss == "infonce" else nt_xent_loss
        return {"contrastive": loss(first, second, self.settings.temperature)}

    def information(self, step: Step) -> Tensor:
        """log B - InfoNCE, a bound for whichever loss is minimised, as its critic may be any."""
        first, second = (each.detach() for each in step.features["projector"])
        return math.log(len(first)) - info_nce_loss(first, second, self.settings.temperature)
