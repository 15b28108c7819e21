"""Experiment trackers, `logging.<name>=true`: each is a file of this folder."""

from orchestra_flwr.reporting.trackers.base import TrackedRun
from orchestra_flwr.reporting.trackers.several import Trackers, check_trackers

__all__ = ["TrackedRun", "Trackers", "check_trackers"]
