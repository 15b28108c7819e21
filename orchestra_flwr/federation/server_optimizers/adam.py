"""Adam at the server: FedAdam."""

import numpy as np
from pydantic import Field

from orchestra_flwr.federation.server_optimizers import AdaptiveOptimizer


class Adam(AdaptiveOptimizer):
    """v = beta2 * v + (1 - beta2) * Delta^2 (Reddi et al., 2021, Algorithm 2).

    With `bias_correction` it is Adam as Kingma and Ba wrote it (https://arxiv.org/abs/1412.6980)
    and as torch.optim.Adam computes it: v starts from 0, and at step t m is divided by
    1 - beta1^t and v by 1 - beta2^t.

    Flower's FedAdam is neither. It starts v from 0, always corrects the bias, adds epsilon to the
    root of v before that is corrected, and counts one round too many (t = round + 1), so that its
    first step is 0.74 of Adam's.
    """

    class Settings(AdaptiveOptimizer.Settings):
        beta2: float = Field(0.99, ge=0, lt=1)
        bias_correction: bool = False

    settings: Settings

    def initial_moments(self) -> dict[str, float]:
        """As of all adaptive optimizers; zeros where the bias is corrected."""
        moments = super().initial_moments()
        return dict.fromkeys(moments, 0.0) if self.settings.bias_correction else moments

    def accumulate(self, second: np.ndarray, square: np.ndarray) -> None:
        """v = beta2 v + (1 - beta2) Delta^2."""
        second *= self.settings.beta2
        second += (1 - self.settings.beta2) * square

    def corrections(self) -> tuple[float, float]:
        """What makes up for a start from 0."""
        if not self.settings.bias_correction:
            return super().corrections()
        return 1 - self.settings.beta1**self.steps, 1 - self.settings.beta2**self.steps
