"""The coordinate-wise trimmed mean."""

from collections.abc import Sequence
from math import ceil

import numpy as np
from pydantic import Field

from orchestra_flwr.config import Section
from orchestra_flwr.federation.aggregations import RobustAggregation, by_blocks


class TrimmedMean(RobustAggregation):
    """The mean of each value without the largest and the smallest; all clients weigh the same.

    Definition 2 of Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018, https://arxiv.org/abs/1803.01498.
    """

    class Settings(Section):
        trim: float = Field(0.2, gt=0, lt=0.5)  # share of the clients left out at each end

    settings: Settings

    def combine(self, states: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
        """The mean of what lies between; `trim` is rounded up, but at least one value remains."""
        count = len(states)
        # In floats .07 * 100 is a little more than 7.
        trimmed = min(ceil(round(self.settings.trim * count, 6)), (count - 1) // 2)

        def trimmed_mean(block: np.ndarray) -> np.ndarray:
            block.sort(axis=0)
            return np.asarray(block[trimmed : count - trimmed].mean(axis=0))

        return by_blocks(states, trimmed_mean)
