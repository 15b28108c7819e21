"""The contract of the codecs: one client's update as integers, and the sum of all back."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestra_flwr.seeding import ClientSeed


@dataclass(frozen=True)
class Numbers:
    """What a client sends beside its update, each times its weight; of a sum, the sums."""

    weight: float  # what its update counts, from 0 to 1
    images: float  # that it trained on
    cut: float  # 1 if some of its update was out of range, else 0
    metrics: Mapping[str, float]  # losses and measures, by name


class SumCodec(ABC):
    """Encodes one client's update, and decodes the sum of all."""

    noise = 0.0  # of the sum in units of the clip; 0: there is none

    @property
    @abstractmethod
    def layout(self) -> tuple[tuple[int, int], ...]:
        """Bits and number of integers of each part of a vector."""

    def check(self, clients: int) -> None:  # noqa: B027 (most fit any number of clients)
        """Refuses a sum of so many clients.

        Raises:
            ValueError: it does not fit into the integers.
        """

    @abstractmethod
    def encode(
        self,
        trained: np.ndarray,
        received: np.ndarray,
        numbers: Numbers,
        clients: int,
        seed: ClientSeed,
    ) -> list[np.ndarray]:
        """A client's integers, in the parts of the layout.

        Args:
            trained: (size,) float32 state after training.
            received: (size,) float32 state before it.
            numbers: of the client; `cut` is found here.
            clients: that the sum began with: there may be so many in it.
            seed: of the rounding, and in simulations of noise.

        Raises:
            ValueError: values that are not finite, or that do not fit into the integers.
        """

    @abstractmethod
    def decode(
        self,
        total: Sequence[np.ndarray],
        received: np.ndarray,
        clients: int,
        survivors: int,
        names: Sequence[str],
    ) -> tuple[np.ndarray, Numbers]:
        """The mean of the clients' states, and the sums of their numbers.

        Args:
            total: the sum of what clients encoded.

        Raises:
            ValueError: numbers that no such clients can have sent.
        """
