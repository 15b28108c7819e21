"""What a schedule is: the learning rate as a share of `training.lr`, by how much was trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from orchestra_flwr.config import Plugin

Unit = Literal["epochs", "rounds"]


@dataclass(frozen=True)
class LocalProgress:
    """Where a client stands in the run when it begins a local epoch.

    It follows from the round's number, not from what the client did before: a client that missed
    rounds, or a resumed run, gets the same learning rate.

    Attributes:
        round: from 1.
        rounds: of the run.
        epoch: of this round, from 0.
        epochs: local epochs of each round.
    """

    round: int
    rounds: int
    epoch: int
    epochs: int

    @property
    def rounds_before(self) -> int:
        """Rounds that are over."""
        return max(0, self.round - 1)

    def share(self, unit: Unit) -> float:
        """How much of the run's training is over, 0 to 1; within a round, rounds stand still."""
        if unit == "rounds":
            return self.rounds_before / self.rounds
        before = self.rounds_before * self.epochs + self.epoch
        return before / (self.rounds * self.epochs)


class Schedule(Plugin, ABC):
    """The learning rate of each local epoch, the same for all clients.

    Class attributes:
        Settings: the schedule's own options under `schedule.`.
        changes: whether the rate differs between epochs at all.

    Args:
        settings: its options, checked.
    """

    changes: ClassVar[bool] = True

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def factor(self, progress: LocalProgress) -> float:
        """What `training.lr` is multiplied by in an epoch; not negative."""
