"""Server momentum: FedAvgM."""

import numpy as np
from pydantic import Field

from orchestra_flwr.config import Section
from orchestra_flwr.federation.server_optimizers import ElementwiseOptimizer


class Momentum(ElementwiseOptimizer):
    """Stochastic gradient descent with momentum: v = momentum * v + Delta; x + lr * v.

    Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", 2019, https://arxiv.org/abs/1909.06335. Flower's FedAvgM computes the same in
    float32; it moves BatchNorm statistics too, which here take the mean.
    """

    class Settings(Section):  # the defaults are FedAvgM's of Reddi et al. (2021)
        lr: float = Field(1.0, gt=0)
        momentum: float = Field(0.9, ge=0, lt=1)

    settings: Settings

    def initial_moments(self) -> dict[str, float]:
        return {"momentum": 0.0}

    def change(self, update: np.ndarray, moments: dict[str, np.ndarray]) -> np.ndarray:
        """lr * m, with m = momentum m + Delta."""
        momentum = moments["momentum"]
        momentum *= self.settings.momentum
        momentum += update
        return self.settings.lr * momentum
