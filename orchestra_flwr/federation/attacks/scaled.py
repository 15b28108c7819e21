"""A multiple of what was learned, by which one client counts as many."""

import numpy as np
import torch
from pydantic import Field

from orchestra_flwr.config import Section
from orchestra_flwr.federation.attacks import Attack, times_update


class Scaled(Attack):
    """received + scale * (trained - received).

    As in Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020,
    https://arxiv.org/abs/1807.00459: with scale = cohort the attacker's model replaces the mean.
    """

    class Settings(Section):
        scale: float = Field(10.0, gt=0)  # factor of the update

    settings: Settings

    def sent(
        self, received: np.ndarray, trained: np.ndarray, generator: torch.Generator
    ) -> np.ndarray:
        return times_update(self.settings.scale, received, trained)
