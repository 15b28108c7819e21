"""Barlow Twins: features of two views agree, and no two features say the same.

Zbontar et al., "Barlow Twins: Self-Supervised Learning via Redundancy Reduction", ICML 2021 (arXiv
2103.03230).
"""

import torch
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Section
from orchestra_flwr.methods.families import JointEmbedding

EPSILON = 1e-5  # added to variances, as in the BatchNorm with which the authors' code standardises


def cross_correlation_loss(first: Tensor, second: Tensor, redundancy: float) -> Tensor:
    """Distance of the views' cross-correlation matrix from the identity (equations 1 and 2).

    Args:
        first: (B, D) features of one view of every image.
        second: (B, D) features of another view of the same images.
        redundancy: lambda, the weight of the off-diagonal terms.

    Returns:
        Scalar: equation 1 divided by D, so that one learning rate fits every D. (The paper's
        optimizer, LARS, is not affected by such factors.)
    """
    count, dim = first.shape
    correlation = _standardised(first).T @ _standardised(second) / count
    diagonal = torch.eye(dim, dtype=torch.bool, device=correlation.device)
    invariance = (1 - correlation.diagonal()).square().sum()
    others = correlation.square().masked_fill(diagonal, 0).sum()
    return (invariance + redundancy * others) / dim


def _standardised(features: Tensor) -> Tensor:
    """(B, D) features of mean 0 and variance 1 over the batch."""
    centred = features - features.mean(dim=0)
    return centred * (centred.square().mean(dim=0) + EPSILON).rsqrt()


class BarlowTwins(JointEmbedding):
    """Backbone and a three-layer projector, all of whose layers are equally wide."""

    class Settings(Section):
        redundancy: float = Field(0.005, ge=0)  # the paper's lambda

    settings: Settings

    def compare(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:
        return {"correlation": cross_correlation_loss(first, second, self.settings.redundancy)}
