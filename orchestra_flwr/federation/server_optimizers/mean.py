"""The clients' mean is the next state: FedAvg."""

from collections.abc import Sequence

import numpy as np

from orchestra_flwr.federation.server_optimizers import ServerOptimizer


class Mean(ServerOptimizer):
    """Returns the mean itself (McMahan et al., 2017, https://arxiv.org/abs/1602.05629).

    The same as `momentum` with lr 1 and momentum 0, but exactly and without any arithmetic.
    """

    needs_before = False

    def step(self, before: np.ndarray, mean: np.ndarray, trained: Sequence[slice]) -> np.ndarray:
        return mean
