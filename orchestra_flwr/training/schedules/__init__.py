"""How the clients' learning rate changes during a run: one file a schedule, found by its name."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal

from orchestra_flwr.config import Config, Plugin

Unit = Literal["epochs", "rounds"]


@dataclass(frozen=True)
class LocalProgress:
    """Where a run stands when a client begins a local epoch, whatever that client did before.

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
        """The share of the run's epochs, or of its whole rounds, that are over: 0 to 1."""
        if unit == "rounds":
            return self.rounds_before / self.rounds
        epochs_before = self.rounds_before * self.epochs + self.epoch
        return epochs_before / (self.rounds * self.epochs)


class Schedule(Plugin, ABC):
    """The learning rate of each local epoch, the same for all clients.

    Class attributes:
        Settings: the schedule's own options under `schedule.`.
        changes: whether the rate differs between epochs at all.
    """

    changes: ClassVar[bool] = True

    @abstractmethod
    def factor(self, progress: LocalProgress) -> float:
        """The factor of `training.lr` in an epoch, at least 0."""


def rate_factor(config: Config, schedule: Schedule, progress: LocalProgress) -> float:
    """:meth:`Schedule.factor` of the configuration's schedule.

    Raises:
        ConfigError: it is no finite number, or below 0.
    """
    factor: Any = schedule.factor(progress)
    fits = isinstance(factor, Real) and 0 <= float(factor) < math.inf
    config.schedule.check_returned("factor", factor, fits, "a number, at least 0")
    return float(factor)


def try_schedule(config: Config) -> None:
    """Refuses a schedule that has no factor for the first or the last local epoch of the run.

    Raises:
        ConfigError: as :func:`rate_factor`, or it raises an error.
    """
    rounds, epochs = config.federation.rounds, config.training.local_epochs
    if not rounds:  # nothing is trained
        return
    with config.schedule.tried():
        schedule: Schedule = config.schedule.build()
        for progress in ((1, rounds, 0, epochs), (rounds, rounds, epochs - 1, epochs)):
            rate_factor(config, schedule, LocalProgress(*progress))
