"""The geometric median: robust federated aggregation (RFA)."""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from orchestra_flwr.config import Section
from orchestra_flwr.federation.aggregations import RobustAggregation, by_blocks, stacked_blocks

TOLERANCE = 1e-6  # relative decrease of the objective below which the steps end
FAR = 100  # median distances; farther states would make objective and tolerance too large


class GeometricMedian(RobustAggregation):
    """The state with the smallest weighted sum of distances to the clients' states.

    By the smoothed Weiszfeld algorithm, Algorithm 2 of Pillutla, Kakade and Harchaoui, "Robust
    Aggregation for Federated Learning", IEEE TSP 2022, https://arxiv.org/abs/1912.13445.
    """

    class Settings(Section):
        iterations: int = Field(100, ge=1)  # at most
        smoothing: float = Field(1e-6, gt=0)  # the least that a distance counts (nu)

    settings: Settings

    def combine(self, states: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
        """Starts from the weighted mean and ends when the sum of distances falls no more.

        Far states are left out of that sum: their distances would hide what is still to be gained.
        """
        shares = weights / weights.sum()
        center, best = _weighted(states, shares), np.inf
        for _ in range(self.settings.iterations):
            distances = np.maximum(_distances(states, center), self.settings.smoothing)
            near = distances <= FAR * np.median(distances)
            objective = float(shares @ np.where(near, distances, 0))
            if best - objective <= TOLERANCE * objective:
                break
            best, closeness = objective, shares / distances
            center = _weighted(states, closeness / closeness.sum())
        return center


def _weighted(states: Sequence[np.ndarray], shares: np.ndarray) -> np.ndarray:
    return by_blocks(states, lambda block: shares @ block)


def _distances(states: Sequence[np.ndarray], center: np.ndarray) -> np.ndarray:
    """(n,) Euclidean distances of states to a center."""
    squares = np.zeros(len(states))
    for block, values in stacked_blocks(states):
        squares += np.square(values - center[block]).sum(axis=1)
    return np.sqrt(squares)
