"""The feature memory: the latest target feature of each of the last images, never uploaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from orchestra_flwr.data import first_occurrences

NOBODY = -1  # in place of an image's number, in rows that nothing was pushed to


class FeatureMemory(nn.Module):
    """First-in first-out memory of (image, feature) rows.

    Holding `size` rows is enough for `size` different images: an image comes back only after all
    others of its client, so the newest rows of the last epoch are all different ones.
    """

    features: Tensor
    images: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("features", torch.zeros(size, dim))
        self.register_buffer("images", torch.full((size,), NOBODY))

    def __len__(self) -> int:
        """Rows that something was pushed to."""
        return int((self.images != NOBODY).sum())

    def clear(self) -> None:
        """Forgets everything."""
        self.features.zero_()
        self.images.fill_(NOBODY)

    def push(self, images: Tensor, features: Tensor) -> None:
        """Appends (B,) image numbers with their (B, dim) features; the oldest rows fall out."""
        size = len(self.images)  # always the same tensors, whose shape never changes
        self.features.copy_(torch.cat([self.features, features.detach()])[-size:])
        self.images.copy_(torch.cat([self.images, images])[-size:])

    def latest(self, images: Tensor) -> Tensor:
        """The newest feature of every different image that is still remembered.

        Copies of an image, those with the same pixels, are one image that was seen more often.

        Args:
            images: (n, C, H, W) uint8, all of the client's, which the pushed numbers count.

        Returns:
            (m, dim), newest first.
        """
        newest_first = self.images.flip(0)[: len(self)]
        chosen = torch.unique(first_occurrences(images[newest_first]))
        return self.features.flip(0)[chosen.to(self.features.device)]
