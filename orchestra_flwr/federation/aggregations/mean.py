"""The weighted mean: the server adds each reply to a sum and drops it."""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from orchestra_flwr.config import Section
from orchestra_flwr.federation.aggregations import Aggregation
from orchestra_flwr.federation.vector_blocks import BLOCK
from orchestra_flwr.flower.arrays import as_tensor


class Mean(Aggregation):
    """Weighted mean of flat arrays, one at a time: memory of one array, however many are added.

    Sums are in float64, so their rounding is far below float32's. The result's last bits depend on
    the order of addition, which the strategy fixes.
    """

    def __init__(
        self, settings: Section, size: int, sent: Callable[[], np.ndarray] | None = None
    ) -> None:
        super().__init__(settings, size, sent)
        # From numpy, which asks for huge pages: the first pass then takes a third of the time.
        self._sum = torch.from_numpy(np.zeros(size))
        self._weight = 0.0

    def add(self, values: np.ndarray, weight: float) -> None:
        for part, total in _blocks(as_tensor(values), self._sum):
            total.add_(part.double(), alpha=weight)
        self._weight += weight

    def result(self) -> np.ndarray:
        """(size,) float32 mean, which takes the sum's place: nothing can be added after it."""
        # In the sum's own memory: each block is written where everything has already been read.
        mean = self._sum.view(torch.float32)[: len(self._sum)]
        for part, total in _blocks(mean, self._sum):
            part.copy_(total / self._weight)
        return mean.numpy()


def _blocks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    return zip(*(torch.split(tensor, BLOCK) for tensor in tensors), strict=True)
