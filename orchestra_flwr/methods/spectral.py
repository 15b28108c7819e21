"""Spectral: the spectral contrastive loss on the projector's outputs.

HaoChen et al., "Provable Guarantees for Self-Supervised Deep Learning with Spectral Contrastive
Loss", NeurIPS 2021 (arXiv 2106.04156). `method=specloss` has it on the cosines of another layer, as
in the Orchestra paper.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orchestra_flwr.config import ModelConfig, Section
from orchestra_flwr.methods.frames import JointEmbedding
from orchestra_flwr.models import build_head
from orchestra_flwr.models.precision import in_float32

Norm = Literal["sphere", "ball", "none"]


@in_float32
def spectral_contrastive_loss(first: Tensor, second: Tensor, norm: Norm = "none") -> Tensor:
    """-2 E<x, x+> + E<x, y>^2 over pairs of views of one and of different images.

    Args:
        first: (B, D) outputs for one view of every image.
        second: (B, D) outputs for another view of the same images.
        norm: "sphere": outputs are brought to unit length first; "ball": those longer than 1 are,
            as in the authors' code (mu = 1); "none": they stay as they are.

    Returns:
        Scalar: the means over the B equal and the B (B - 1) different pairs. A single image has no
        different pair, and nothing that pushes it away.
    """
    if norm == "sphere":
        first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
    elif norm == "ball":
        first, second = (x / x.norm(dim=1, keepdim=True).clamp(min=1) for x in (first, second))
    count = len(first)
    products = first @ second.T
    same = torch.eye(count, dtype=torch.bool, device=products.device)
    different = products.square().masked_fill(same, 0).sum() / max(count * (count - 1), 1)
    return -2 * products.diagonal().mean() + different


class SpectralSettings(Section):
    """Options under `method.` for method=spectral."""

    norm: Norm = "ball"


class Spectral(JointEmbedding):
    """Backbone and a two-layer projector."""

    Settings = SpectralSettings

    settings: SpectralSettings

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """Two layers, the second one with biases."""
        return build_head(model, self.backbone.dim, model.projector_dim, bias=True)

    def compare(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:
        """The spectral loss of one step."""
        return {"spectral": spectral_contrastive_loss(first, second, self.settings.norm)}
