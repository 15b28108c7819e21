"""The feature memory: the latest target feature of each of the last images, never uploaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FeatureMemory(nn.Module):
    """First-in first-out memory of (image, feature) rows.

    Holding `size` rows is enough for `size` different images: an image comes back only after all
    others of its client, so the newest rows of the last epoch are all different ones.
    """

    features: Tensor
    images: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("features", torch.zeros(0, dim))
        self.register_buffer("images", torch.zeros(0, dtype=torch.long))

    def clear(self) -> None:
        """Forgets everything."""
        self.features, self.images = self.features[:0], self.images[:0]

    def push(self, images: Tensor, features: Tensor) -> None:
        """Appends (B,) image numbers with their (B, dim) features; the oldest rows fall out."""
        self.features = torch.cat([self.features, features.detach()])[-self.size :]
        self.images = torch.cat([self.images, images])[-self.size :]

    def latest(self) -> Tensor:
        """(n, dim) the newest feature of every image that is still remembered, newest first."""
        newest_first = self.images.flip(0)
        unique, inverse = torch.unique(newest_first, return_inverse=True)
        positions = torch.arange(len(newest_first), device=inverse.device)
        first = positions.new_full((len(unique),), len(newest_first))
        first = first.scatter_reduce(0, inverse, positions, "amin").sort().values
        return self.features.flip(0)[first]
