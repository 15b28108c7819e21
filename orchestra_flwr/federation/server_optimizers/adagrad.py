"""Adagrad at the server: FedAdagrad."""

import numpy as np
from pydantic import Field

from orchestra_flwr.federation.server_optimizers import AdaptiveOptimizer


class Adagrad(AdaptiveOptimizer):
    """v = v + Delta^2 (Reddi et al., 2021, Algorithm 2).

    Steps only become smaller. As in the paper's experiments there is no momentum (beta1 0).
    Flower's FedAdagrad computes the same, but starts v from 0, below the epsilon squared that the
    algorithm asks for.
    """

    class Settings(AdaptiveOptimizer.Settings):
        lr: float = Field(0.1, gt=0)
        beta1: float = Field(0.0, ge=0, lt=1)

    def accumulate(self, second: np.ndarray, square: np.ndarray) -> None:
        """v = v + Delta^2."""
        second += square
