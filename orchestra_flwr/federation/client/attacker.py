"""A client of a simulation that attacks."""

from typing import Any

import numpy as np
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.federation.attacks import Attack
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.seeding import ClientSeed


class Attacker(OrchestraClient):
    """Trains on what its attack makes of its images, and sends what that makes of the result.

    Args:
        images: (n, C, H, W) uint8.
        arguments: as for :class:`OrchestraClient`.
    """

    needs_received_state = True

    def __init__(self, config: Config, name: str, images: Tensor, *args: Any, **named: Any) -> None:
        self._attack: Attack = config.attack.build()
        super().__init__(config, name, self._attack.poisoned(images), *args, **named)

    def state_to_send(
        self, received: np.ndarray | None, trained: np.ndarray, seed: ClientSeed
    ) -> np.ndarray:
        """What the attack makes of it.

        BatchNorm's statistics stay: a server drops variances below 0, and the attack with them.
        """
        assert received is not None
        state = self._attack.sent(received, trained, seed.generator("attack"))
        for span, _ in self.schemas.shared.statistics:
            state[span] = trained[span]
        return state
