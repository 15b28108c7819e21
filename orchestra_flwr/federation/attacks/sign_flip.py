"""The opposite of what was learned."""

import numpy as np
import torch
from pydantic import Field

from orchestra_flwr.config import Section
from orchestra_flwr.federation.attacks import Attack, times_update


class SignFlip(Attack):
    """received - scale * (trained - received).

    As in Li et al., "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning
    from Heterogeneous Datasets", AAAI 2019, https://arxiv.org/abs/1811.03761.
    """

    class Settings(Section):
        scale: float = Field(1.0, gt=0)  # how far it goes, in units of the attacker's own update

    settings: Settings

    def sent(
        self, received: np.ndarray, trained: np.ndarray, generator: torch.Generator
    ) -> np.ndarray:
        return times_update(-self.settings.scale, received, trained)
