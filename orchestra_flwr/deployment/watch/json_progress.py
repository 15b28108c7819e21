"""A server's progress as lines of JSON."""

from collections.abc import Mapping
from typing import Any

from orchestra_flwr.console.json_lines import json_line
from orchestra_flwr.reporting import Progress, RoundOutcome
from orchestra_flwr.reporting.run_folder import finite


class JsonProgress(Progress):
    """For programs that collect logs: `logging.format=json`."""

    def round_started(self, round: int, cohort: int, label: str) -> None:
        """A line with the cohort."""
        super().round_started(round, cohort, label)
        self._print("round_started", round=round, cohort=cohort, label=label)

    def round_finished(self, outcome: RoundOutcome) -> None:
        """A line with loss, scores, seconds, and how many clients answered."""
        super().round_finished(outcome)
        replies = {"cohort": self.cohort, "replies": self.done, "failed": self.failed}
        self._print("round_finished", **replies, **outcome._asdict())

    def message(self, text: str) -> None:
        """A line with what a person would read."""
        self._print("message", message=text)

    def phase_started(self, text: str) -> None:
        """A line; there is none at the end of a phase."""
        self._print("phase_started", phase=text)

    def finished(self, summary: Mapping[str, Any], folder: str) -> None:
        """The run is over."""
        self._print("finished", run_folder=folder, summary=summary)

    @staticmethod
    def _print(event: str, **values: Any) -> None:
        print(json_line(event, **finite(values)), flush=True)
