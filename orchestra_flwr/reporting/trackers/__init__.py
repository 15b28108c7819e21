"""Experiment trackers, `logging.<name>=true`: each is a file of this folder."""

from orchestra_flwr.reporting.trackers.base import TrackedRun, Tracker
from orchestra_flwr.reporting.trackers.several import Trackers, check_trackers

__all__ = ["TrackedRun", "Tracker", "Trackers", "check_trackers"]
