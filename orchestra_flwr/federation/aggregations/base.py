"""What an aggregation is: it takes the states of a stage one by one, and makes one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np


class Aggregation(ABC):
    """What the clients' states that enter a model in a stage become."""

    @abstractmethod
    def add(self, values: np.ndarray, weight: float) -> None:
        """Takes a client's (size,) float32 state, which is not kept.

        Raises:
            ValueError: a weight that it does not allow, or an array of another size.
        """

    @abstractmethod
    def mean(self) -> np.ndarray:
        """(size,) float32 new state of the model; called once, after the last state.

        Raises:
            ValueError: nothing was added, and nothing follows from that.
        """
