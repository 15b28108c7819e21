"""Prototypes: trained unit vectors that features are compared with."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Prototypes(nn.Module):
    """A linear layer without biases, with normalised weights, on normalised features.

    Weights are normalised when used, not after each step, so clients' weights can be averaged.
    """

    def __init__(self, count: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, dim))
        nn.init.normal_(self.weight, std=dim**-0.5)

    def forward(self, features: Tensor) -> Tensor:
        """(B, dim) features to their (B, K) cosines."""
        return F.linear(F.normalize(features, dim=1), F.normalize(self.weight, dim=1))
