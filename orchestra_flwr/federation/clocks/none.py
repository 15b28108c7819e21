"""No clock: a simulation takes the time that it takes, and nobody is late."""

from collections.abc import Sequence
from typing import Any, ClassVar

from orchestra_flwr.federation.clocks import Clock, Device


class NoClock(Clock):
    """Every client is there and in time."""

    keeps_time: ClassVar[bool] = False

    @classmethod
    def unread(cls, config: Any) -> dict[str, str]:
        """Without a clock nobody can be late; real clients can (:class:`ServerConfig`)."""
        keys = ("enough", "oversample", "deadline", "round_timeout")
        why = "in a simulation without clock=virtual"
        return {f"federation.{key}": why for key in keys}

    def devices(self, clients: Sequence[str], seed: int) -> dict[str, Device] | None:
        return None
