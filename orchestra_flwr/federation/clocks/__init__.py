"""Clocks of simulations: the clients' devices, from which a round's seconds are computed.

With a clock a simulation computes when each client's reply would come: `federation.enough`, the
deadline, absent clients and buffered rounds then act as they would on such devices, the same in
every run and however fast this machine is.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from orchestra_flwr.config import Plugin

HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True)
class Device:
    """What a client runs on."""

    images_per_second: float  # that it trains on, above 0
    down: float  # bytes per second that it receives, above 0
    up: float  # bytes per second that it sends, above 0
    leaves: float = 0.0  # hour of the day at which it goes away
    hours_away: float = 0.0  # of each day, below 24; 0: it is always there

    def __post_init__(self) -> None:
        if not all(rate > 0 for rate in (self.images_per_second, self.down, self.up)):
            raise ValueError(f"rates of a device must be above 0: {self}")

    def back(self, now: float) -> float:
        """When it is there: `now` (in seconds since the first midnight), or when it comes back."""
        since = (now - self.leaves * HOUR) % DAY  # it left
        away = self.hours_away * HOUR
        return now + away - since if since < away else now

    def end(self, start: float, seconds: float) -> float:
        """When work of so many seconds that begins at `start` ends; absence interrupts it."""
        now, away = self.back(start), self.hours_away * HOUR
        left = DAY - (now - self.leaves * HOUR) % DAY  # until it goes away again
        if not away or seconds <= left:
            return now + seconds
        # Whole days of work, then a part of one, above 0: work ends before the next absence.
        days = max(0, math.ceil((seconds - left) / (DAY - away)) - 1)
        return now + left + away + days * DAY + (seconds - left - days * (DAY - away))


class Clock(Plugin, ABC):
    """Says on which device each client of a simulation runs.

    Class attributes:
        keeps_time: whether clients have devices, by which they can be late.
    """

    keeps_time: ClassVar[bool] = True

    @abstractmethod
    def devices(self, clients: Sequence[str], seed: int) -> dict[str, Device] | None:
        """The device of each client; None, unless it `keeps_time`: nobody is late.

        Args:
            clients: all of them, in their order.
            seed: of the run.

        Raises:
            ConfigError: a table cannot be read, or does not fit the clients.
        """
