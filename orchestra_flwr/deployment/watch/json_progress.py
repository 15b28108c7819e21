"""A server's progress as lines of JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestra_flwr.console.json_lines import json_line
from orchestra_flwr.reporting import Progress
from orchestra_flwr.reporting.run_folder import finite


class JsonProgress(Progress):
    """For programs that collect logs: `logging.format=json`."""

    def round_started(self, round: int, cohort: int, label: str) -> None:
        """As :meth:`Progress.round_started`."""
        super().round_started(round, cohort, label)
        self._print("round_started", round=round, cohort=cohort, label=label)

    def round_finished(
        self,
        round: int,
        losses: Mapping[str, float],
        scores: Mapping[str, float] | None,
        seconds: float,
        dropped: Sequence[str],
    ) -> None:
        """As :meth:`Progress.round_finished`."""
        super().round_finished(round, losses, scores, seconds, dropped)
        replies = {"cohort": self.cohort, "replies": self.done, "failed": self.failed}
        values = {"loss": losses, "scores": scores, "seconds": seconds, "dropped": dropped}
        self._print("round_finished", round=round, **replies, **values)

    def message(self, text: str) -> None:
        """As :meth:`Progress.message`."""
        self._print("message", message=text)

    def phase_started(self, text: str) -> None:
        """As :meth:`Progress.phase_started`."""
        self._print("phase_started", phase=text)

    def finished(self, summary: Mapping[str, Any], folder: str) -> None:
        """The run is over."""
        self._print("finished", run_folder=folder, summary=summary)

    @staticmethod
    def _print(event: str, **values: Any) -> None:
        print(json_line(event, **finite(values)), flush=True)
