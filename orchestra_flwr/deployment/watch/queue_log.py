"""The audit log of a queue: which runs were submitted, begun or cancelled, and how they ended."""

from collections.abc import Callable
from contextlib import suppress

from orchestra_flwr.deployment.run_queue import (
    BEGUN,
    CANCELLED,
    CONFIGURATION,
    WAITING,
    QueuedRun,
    RunQueue,
    latest_events,
)
from orchestra_flwr.deployment.watch.audit_log import AuditLog
from orchestra_flwr.fingerprints import file_sha256

SUBMITTED, ENDED = "submitted", "ended"


class QueueLog(AuditLog):
    """Written by the server alone, which looks at what others did in the queue."""

    def __init__(self, queue: RunQueue, report: Callable[[str], None]) -> None:
        super().__init__(queue.folder, report)
        self._queue = queue
        self._latest = latest_events(queue.folder)  # by run

    def begins(self, run: QueuedRun) -> None:
        """Notes that the server begins a run, or goes on with it, even with one that had ended."""
        self.update()  # it may have been submitted a moment ago
        self._note("resumed" if run.has_begun else "began", run.name)

    def update(self) -> None:
        """Notes what was submitted, cancelled or ended since the last time."""
        for run in self._queue.runs():
            if self._latest.get(run.name) in (ENDED, CANCELLED):
                continue
            if run.name not in self._latest:
                with suppress(OSError):  # somebody removes it now
                    self._note(SUBMITTED, run.name, config=file_sha256(run.path / CONFIGURATION))
            if (state := run.state) == CANCELLED:
                self._note(CANCELLED, run.name)
            elif state not in (WAITING, BEGUN):
                self._note(ENDED, run.name, how=state)

    def _note(self, event: str, run: str, **values: str) -> None:
        self.add(event, run=run, **values)
        self._latest[run] = event
