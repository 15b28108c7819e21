"""The feature memory: the latest target features of the last images, never uploaded."""

import torch
from torch import Tensor, nn

from orchestra_flwr.data import first_occurrences

EMPTY = -1  # the image number of rows without an image


class FeatureMemory(nn.Module):
    """First-in first-out memory of (image, feature) rows.

    An image comes back only after all others of its client, so the newest `size` rows of an epoch
    are different images.
    """

    features: Tensor
    images: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("features", torch.zeros(size, dim))
        self.register_buffer("images", torch.full((size,), EMPTY))

    def __len__(self) -> int:
        """Rows that hold an image."""
        return int((self.images != EMPTY).sum())

    def clear(self) -> None:
        """Forgets everything."""
        self.features.zero_()
        self.images.fill_(EMPTY)

    def push(self, images: Tensor, features: Tensor) -> None:
        """Appends (B,) image numbers with their (B, dim) features; the oldest rows fall out."""
        size = len(self.images)  # always the same tensors, whose shape never changes
        self.features.copy_(torch.cat([self.features, features.detach()])[-size:])
        self.images.copy_(torch.cat([self.images, images])[-size:])

    def latest(self, images: Tensor) -> Tensor:
        """The newest feature of every different image in the memory; copies count as one image.

        Args:
            images: (n, C, H, W) uint8, all of the client's, which the pushed numbers index.

        Returns:
            (m, dim), newest first.
        """
        newest_first = self.images.flip(0)[: len(self)]
        chosen = torch.unique(first_occurrences(images[newest_first]))
        return self.features.flip(0)[chosen]
