"""The coordinate-wise median."""

from collections.abc import Sequence

import numpy as np

from orchestra_flwr.federation.aggregations import RobustAggregation, by_blocks


class Median(RobustAggregation):
    """The median of each value, the mean of the middle two if even; all clients weigh the same.

    Definition 1 of Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018, https://arxiv.org/abs/1803.01498.
    """

    def combine(self, states: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
        return by_blocks(states, lambda block: np.median(block, axis=0, overwrite_input=True))
