"""Prototypes: trained unit vectors that features are compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Prototypes(nn.Module):
    """K directions; only directions of features matter, too.

    What is stored is brought to unit length when it is used, not after each step: then the mean
    of the clients' prototypes needs no care. As a layer it is a linear one without biases whose
    weights are normalised, on normalised features.
    """

    def __init__(self, count: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, dim))
        nn.init.normal_(self.weight, std=dim**-0.5)

    def forward(self, features: Tensor) -> Tensor:
        """(B, dim) features to their (B, K) cosines."""
        return F.linear(F.normalize(features, dim=1), F.normalize(self.weight, dim=1))
