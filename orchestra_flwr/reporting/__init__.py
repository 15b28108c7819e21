"""The output of one run: its folder, progress, table and trackers; `plots` draws its figures."""

from orchestra_flwr.reporting.environment import environment
from orchestra_flwr.reporting.evaluation_output import (
    check_place,
    print_evaluation,
    write_evaluation,
)
from orchestra_flwr.reporting.progress import Progress, RoundOutcome, make_progress
from orchestra_flwr.reporting.run_folder import RunFolder
from orchestra_flwr.reporting.trackers import TrackedRun, Trackers, check_trackers

__all__ = [
    "Progress",
    "RoundOutcome",
    "RunFolder",
    "TrackedRun",
    "Trackers",
    "check_place",
    "check_trackers",
    "environment",
    "make_progress",
    "print_evaluation",
    "write_evaluation",
]
