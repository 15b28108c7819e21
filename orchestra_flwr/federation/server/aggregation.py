"""Streaming aggregation: the server adds each reply up and lets it go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from orchestra_flwr.federation.messages.arrays import as_tensor
from orchestra_flwr.privacy.updates import clipped_update

BLOCK = 1 << 16  # values that are turned into float64 at once: they stay in the processor's cache


class StreamingMean:
    """Weighted mean of flat arrays, one at a time: memory of one array, however many are added.

    Sums are in float64, so their rounding is far below float32's. To the last bit the result
    depends on the order of addition; the strategy always adds in the order of the clients' names.
    """

    def __init__(self, size: int) -> None:
        # Numpy asks for huge pages, which a first pass over them needs a third of the time for.
        self._sum = torch.from_numpy(np.zeros(size))
        self._weight = 0.0

    def add(self, values: np.ndarray, weight: float) -> None:
        """Adds a (size,) float32 array.

        Raises:
            ValueError: the weight is not positive, or the array has another size.
        """
        if not weight > 0:
            raise ValueError(f"weights are positive, not {weight}")
        if values.shape != tuple(self._sum.shape):
            raise ValueError(f"expected {tuple(self._sum.shape)}, got {values.shape}")
        for part, total in _blocks(as_tensor(values), self._sum):
            total.add_(part.double(), alpha=weight)
        self._weight += weight

    def mean(self) -> np.ndarray:
        """(size,) float32 mean, which takes the sum's place: nothing can be added after it.

        Raises:
            ValueError: nothing was added.
        """
        if not self._weight:
            raise ValueError("the mean of nothing")
        # In the sum's own memory: a block is always written where all has been read before.
        mean = self._sum.view(torch.float32)[: len(self._sum)]
        for part, total in _blocks(mean, self._sum):
            part.copy_(total / self._weight)
        self._sum, self._weight = torch.zeros(0, dtype=torch.float64), 0.0
        return mean.numpy()


def _blocks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    return zip(*(torch.split(tensor, BLOCK) for tensor in tensors), strict=True)


class ClippedMean:
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
        self._previous = previous
        self._clip = clip
        self._cohort = cohort
        self._noise = noise
        self._sum = np.zeros(previous.shape)

    def add(self, values: np.ndarray, weight: float) -> None:
        """Adds a client's (size,) float32 state.

        Raises:
            ValueError: another weight than 1, or an array of another size.
        """
        if weight != 1:
            raise ValueError(f"clipped updates all weigh 1, not {weight}")
        if values.shape != self._previous.shape:
            raise ValueError(f"expected {self._previous.shape}, got {values.shape}")
        self._sum += clipped_update(self._previous, values, self._clip)

    def mean(self) -> np.ndarray:
        """(size,) float32 new state."""
        total = self._sum if self._noise is None else self._sum + self._noise()
        return (self._previous + total / self._cohort).astype(np.float32)
