"""Attacks: what hostile clients of a simulation do to the model, one class a file.

They show what an aggregation withstands (`experiment=poisoning`). Real clients have none of this.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from orchestra_flwr.config import Config, Plugin
from orchestra_flwr.seeding import numpy_generator


class Attack(Plugin):
    """What an attacker does to its images, and to what it sends; nothing, unless overridden."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses more attackers than there are clients."""
        count, clients = config.attack.clients, config.federation.clients
        if count > clients:
            raise ValueError(
                f"attack.clients={count}: must be at most federation.clients={clients}"
            )

    def poisoned(self, images: Tensor) -> Tensor:
        """The images that an attacker trains on instead of its own.

        Args:
            images: (n, C, S, S) uint8; not changed.
        """
        return images

    def sent(
        self, received: np.ndarray, trained: np.ndarray, generator: torch.Generator
    ) -> np.ndarray:
        """The state that an attacker sends.

        Args:
            received: (size,) float32 state that the round began with.
            trained: (size,) float32 state after the attacker's training.
            generator: the attacker's randomness in this round.

        Returns:
            (size,) float32.
        """
        return trained


def times_update(times: float, received: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """(size,) float32 received + times * (trained - received)."""
    state: np.ndarray = received + np.float32(times) * (trained - received)
    return state


def attackers(config: Config, clients: Sequence[str]) -> frozenset[str]:
    """The clients that attack, drawn from the seed.

    Args:
        config: of the run.
        clients: all of them, in their order.
    """
    if config.attack.name == "none":
        return frozenset()
    generator = numpy_generator(config.seed, "attackers")
    chosen = generator.choice(len(clients), config.attack.clients, replace=False)
    return frozenset(clients[i] for i in chosen)
