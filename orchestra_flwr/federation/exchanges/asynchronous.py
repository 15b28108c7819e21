"""Asynchronous exchanges, whose rounds are updates by whichever results come next."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

Arrivals = list[tuple[str, int]]  # clients, each with the round whose model it began with


class Work(Protocol):
    """Clients at work: on a virtual clock, or on machines of their own."""

    resumable: bool  # whether what is under way goes on when a run is resumed

    def free(self, clients: Collection[str], *, wait: bool = True) -> list[str]:
        """The clients that can begin now; waits until there is one, where time is virtual."""

    def begin(self, clients: Sequence[str]) -> list[float]:
        """Lets clients begin with the newest model; returns a number for each, for :meth:`next`."""

    def next(self, at_work: Mapping[str, float]) -> tuple[str, bool]:
        """Waits for the next of these clients; returns it, and whether it answered or failed.

        Args:
            at_work: the number that :meth:`begin` returned for each; of two that come at once, the
                first one here is returned first.
        """


class Asynchronous(ABC):
    """Mixin for an :class:`Exchange` whose clients begin and end when they can.

    In each round the server asks for the arrivals, sends each of these clients the model that it
    began with, and converts its result to one for the current model (:func:`refreshed`).
    """

    @abstractmethod
    def arrivals(
        self, round_: int, clients: Sequence[str], size: int, work: Work | None, seed: int
    ) -> Arrivals:
        """The results of the round in the order in which they come; waits for the last of them.

        Args:
            round_: from 1.
            clients: all that are here, in their order.
            size: how many work at the same time.
            work: what clients do; None: a replay.
            seed: of the run; decides who begins.
        """

    @abstractmethod
    def results(self, size: int) -> int:
        """How many results make an update, where so many clients work at the same time."""

    @abstractmethod
    def recorded(self, round_: int) -> list[str] | None:
        """The clients of a round of a replay; None: it is no replay."""

    @abstractmethod
    def remember(self, version: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Keeps the model after a round, as it is sent, and forgets those nobody works on."""

    @abstractmethod
    def sent(self, version: int) -> dict[str, np.ndarray]:
        """The arrays of a model that :meth:`remember` keeps."""


def refreshed(
    state: np.ndarray, began: np.ndarray, now: np.ndarray, trained: Sequence[slice], staleness: int
) -> np.ndarray:
    """Converts a result that began with an older model to one for the current model.

    What gradients train moves by the client's update, times 1 / sqrt(1 + staleness). All else, such
    as BatchNorm's statistics, moves that share of the way to the client's values, so that variances
    stay above 0.

    Args:
        state: (size,) float32 that the client sent.
        began: (size,) that it began with.
        now: (size,) that it would begin with now.
        trained: where the values are that gradients train.
        staleness: updates of the model meanwhile, at least one.

    Returns:
        (size,) float32.
    """
    weight = np.float32((1 + staleness) ** -0.5)
    result: np.ndarray = now + weight * (state - now)
    for span in trained:
        result[span] = now[span] + weight * (state[span] - began[span])
    return result
