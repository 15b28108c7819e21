"""Noise instead of what was learned."""

import numpy as np
import torch
from pydantic import Field

from orchestra_flwr.config import Section
from orchestra_flwr.federation.attacks import Attack


class RandomWeights(Attack):
    """received + Gaussian noise, `scale` times as long as the attacker's own update."""

    class Settings(Section):
        scale: float = Field(10.0, gt=0)  # length, in units of the attacker's own update

    settings: Settings

    def sent(
        self, received: np.ndarray, trained: np.ndarray, generator: torch.Generator
    ) -> np.ndarray:
        noise = torch.randn(len(received), generator=generator).numpy()
        length = np.linalg.norm(trained - received) / max(float(np.linalg.norm(noise)), 1e-12)
        return received + np.float32(self.settings.scale * length) * noise
