"""Yogi at the server: FedYogi."""

import numpy as np
from pydantic import Field

from orchestra_flwr.federation.server_optimizers import AdaptiveOptimizer


class Yogi(AdaptiveOptimizer):
    """v = v - (1 - beta2) * Delta^2 * sign(v - Delta^2) (Reddi et al., 2021, Algorithm 2).

    Unlike Adam's, v falls slowly after a large update. Flower's FedYogi computes the same, but
    starts v from 0, below the epsilon squared that the algorithm asks for; first steps are larger
    where updates are small beside epsilon.
    """

    class Settings(AdaptiveOptimizer.Settings):
        beta2: float = Field(0.99, ge=0, lt=1)

    settings: Settings

    def accumulate(self, second: np.ndarray, square: np.ndarray) -> None:
        """v = v - (1 - beta2) Delta^2 sign(v - Delta^2)."""
        second -= (1 - self.settings.beta2) * square * np.sign(second - square)
