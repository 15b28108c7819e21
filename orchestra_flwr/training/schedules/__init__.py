"""How the clients' learning rate changes during a run: one file a schedule, found by its name."""

from orchestra_flwr.training.schedules.base import LocalProgress, Schedule, Unit

__all__ = ["LocalProgress", "Schedule", "Unit"]
