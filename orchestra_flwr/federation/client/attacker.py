"""A client of a simulation that attacks."""

import numpy as np

from orchestra_flwr.federation.attacks import Attack
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.seeding import ClientSeed


class Attacker(OrchestraClient):
    """Trains on images that its attack has changed, and sends a state that it has changed."""

    needs_received_state = True

    def __post_init__(self) -> None:
        self._attack: Attack = self.config.attack.build()
        self.images = self._attack.poisoned(self.images)
        super().__post_init__()

    def state_to_send(
        self, received: np.ndarray | None, trained: np.ndarray, seed: ClientSeed
    ) -> np.ndarray:
        """The state as the attack changes it.

        BatchNorm's statistics stay as trained: a server drops replies with variances below 0.
        """
        assert received is not None
        state = self._attack.sent(received, trained, seed.generator("attack"))
        for span, _ in self.schemas.shared.statistics:
            state[span] = trained[span]
        return state
