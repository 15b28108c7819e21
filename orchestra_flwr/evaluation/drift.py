"""How far apart the models are that clients send: Dec-SSL's drift of weights (arXiv 2210.10947).

d_w(a, b) is the sum over layers of ||a_l - b_l||. Here a layer is a trained tensor. Over many
clients, a layer's distance is the root mean square of the single ones: that takes two running sums,
however many clients there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Drift:
    """Distances of a cohort's models."""

    mean: float  # from their mean (the paper's d_w(g, k))
    pairs: float  # between two of them (d_w(j, k))
    clients: int  # how many there are


class StreamingDrift:
    """Drift of models that are added one by one; holds only sums.

    Args:
        origin: (size,) any state near the models, such as the one that they began with. Differences
            to it are added up, so that rounding stays small.
        layers: of the trained tensors.
    """

    def __init__(self, origin: np.ndarray, layers: Sequence[slice]) -> None:
        self._origin = origin
        self._layers = list(layers)
        self._sum = np.zeros(origin.shape)
        self._squares = np.zeros(len(self._layers))
        self._weights: list[float] = []

    def add(self, state: np.ndarray, weight: float) -> None:
        """Adds a client's (size,) float32 state with its positive weight."""
        for index, layer in enumerate(self._layers):
            change = state[layer].astype(np.float64) - self._origin[layer]
            self._squares[index] += weight * _squared(change)
            self._sum[layer] += weight * change
        self._weights.append(weight)

    def result(self) -> Drift | None:
        """The distances; None for fewer than two models."""
        count, total = len(self._weights), sum(self._weights)
        if count < 2:
            return None
        means = [self._sum[layer] / total for layer in self._layers]
        variances = self._squares / total - np.array([_squared(mean) for mean in means])
        variances = variances.clip(0)  # rounding may make them slightly negative
        # The probability that two models, drawn by their weights, are different ones.
        others = 1 - sum((weight / total) ** 2 for weight in self._weights)
        return Drift(
            float(np.sqrt(variances).sum()), float(np.sqrt(2 * variances / others).sum()), count
        )


def _squared(vector: np.ndarray) -> float:
    """The square of the L2 norm; not by BLAS, whose last bit depends on the number of threads."""
    return float(np.square(vector).sum())
