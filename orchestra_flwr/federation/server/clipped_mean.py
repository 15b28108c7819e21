"""The mean of clipped updates, with or without noise."""

from collections.abc import Callable

import numpy as np

from orchestra_flwr.config import Section
from orchestra_flwr.federation.aggregations import Aggregation
from orchestra_flwr.privacy.updates import clipped_update


class ClippedMean(Aggregation):
    """previous + (sum of clipped updates + noise) / cohort, one client at a time.

    No client moves the sum by more than `clip`, whatever it sends: its update is what it sent
    minus what the server knows that it was sent. The divisor is the number of clients that were
    asked, also where some of them fail: how many answer depends on the clients, and a divisor
    that does would tell what the noise does not hide. Clients that fail count as no change.

    Args:
        previous: (size,) float32 state that the clients were sent.
        clip: L2 norm of an update, at most.
        cohort: clients that were asked.
        noise: makes (size,) float64 noise, which is added to the sum; None: none.
    """

    def __init__(
        self,
        previous: np.ndarray,
        clip: float,
        cohort: int,
        noise: Callable[[], np.ndarray] | None = None,
    ) -> None:
        super().__init__(Section(), len(previous), lambda: previous)
        self._clip = clip
        self._cohort = cohort
        self._noise = noise
        self._sum = np.zeros(previous.shape)

    def add(self, values: np.ndarray, weight: float) -> None:
        """Adds a client's (size,) float32 state; all weigh the same."""
        self._sum += clipped_update(self.sent, values, self._clip)

    def result(self) -> np.ndarray:
        """(size,) float32 new state."""
        total = self._sum if self._noise is None else self._sum + self._noise()
        return (self.sent + total / self._cohort).astype(np.float32)
