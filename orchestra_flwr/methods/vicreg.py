"""VICReg: features of two views agree, vary from image to image, and are not correlated.

Bardes et al., "VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised Learning",
ICLR 2022 (arXiv 2105.04906).
"""

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Section
from orchestra_flwr.methods.families import JointEmbedding

DEVIATION = 1.0  # gamma, the standard deviation that each feature should reach
EPSILON = 1e-4  # added to variances


def variance_loss(features: Tensor) -> Tensor:
    """How far standard deviations are below 1, averaged over features (equations 1 and 2).

    Args:
        features: (B, D), B >= 2.
    """
    deviation = (features.var(dim=0) + EPSILON).sqrt()
    return F.relu(DEVIATION - deviation).mean()


def covariance_loss(features: Tensor) -> Tensor:
    """Sum of squared covariances of different features, divided by D (equations 3 and 4).

    Args:
        features: (B, D), B >= 2.
    """
    count, dim = features.shape
    centred = features - features.mean(dim=0)
    covariance = centred.T @ centred / (count - 1)
    diagonal = torch.eye(dim, dtype=torch.bool, device=covariance.device)
    return covariance.square().masked_fill(diagonal, 0).sum() / dim


class VICReg(JointEmbedding):
    """Backbone and a three-layer projector (the paper's expander), equally wide in all layers."""

    class Settings(Section):  # the weights of equation 6
        invariance: float = Field(25.0, ge=0)  # lambda
        variance: float = Field(25.0, ge=0)  # mu
        covariance: float = Field(1.0, ge=0)  # nu

    settings: Settings

    def compare(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:
        """Equation 6 with the factors of the authors' code.

        That code averages equation 5 over features and the variance over views; the paper sums.
        """
        weights = self.settings
        variance = (variance_loss(first) + variance_loss(second)) / 2
        covariance = covariance_loss(first) + covariance_loss(second)
        return {
            "invariance": weights.invariance * F.mse_loss(first, second),
            "variance": weights.variance * variance,
            "covariance": weights.covariance * covariance,
        }
