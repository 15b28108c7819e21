"""Who talks with whom in a round: one file an exchange, found by its name."""

from orchestra_flwr.federation.exchanges.base import Exchange, Offer, Result, Stage, Task

__all__ = ["Exchange", "Offer", "Result", "Stage", "Task"]
