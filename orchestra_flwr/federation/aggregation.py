"""Streaming aggregation: the server adds each reply up and lets it go."""

from __future__ import annotations

import numpy as np
import torch


class StreamingMean:
    """Weighted mean of flat arrays, one at a time: memory of one array, however many are added.

    Sums are in float64, so their rounding is far below float32's. To the last bit the result
    depends on the order of addition; the strategy always adds in the order of the clients' names.
    """

    def __init__(self, size: int) -> None:
        self._sum = torch.zeros(size, dtype=torch.float64)
        self._weight = 0.0

    def add(self, values: np.ndarray, weight: float) -> None:
        """Adds a (size,) float32 array.

        Raises:
            ValueError: the weight is not positive, or the array has another size.
        """
        if not weight > 0:
            raise ValueError(f"weights are positive, not {weight}")
        if values.shape != tuple(self._sum.shape):
            raise ValueError(f"expected {tuple(self._sum.shape)}, got {values.shape}")
        self._sum.add_(torch.from_numpy(np.require(values, requirements="W")), alpha=weight)
        self._weight += weight

    def mean(self) -> np.ndarray:
        """(size,) float32 mean.

        Raises:
            ValueError: nothing was added.
        """
        if not self._weight:
            raise ValueError("the mean of nothing")
        return (self._sum / self._weight).float().numpy()
