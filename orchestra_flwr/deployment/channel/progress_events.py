"""A run's progress: sent through a channel, shown at its other end."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from orchestra_flwr.deployment.channel.json_pipe import Channel
from orchestra_flwr.reporting import Progress, RoundOutcome


class RelayedProgress(Progress):
    """Sends every event through a channel; :func:`show` is its other end.

    Raises:
        ChannelClosedError: in every method, when nobody listens any more: the run ends.
    """

    def __init__(self, channel: Channel, rounds: int) -> None:
        super().__init__(rounds)
        self._channel = channel

    def round_started(self, round: int, cohort: int, label: str) -> None:
        """As :meth:`Progress.round_started`."""
        self._send("round_started", round, cohort, label)

    def client_asked(self, client: str) -> None:
        """As :meth:`Progress.client_asked`."""
        self._send("client_asked", client)

    def client_done(self, client: str, ok: bool) -> None:
        """As :meth:`Progress.client_done`."""
        self._send("client_done", client, ok)

    def images_evaluated(self, backbone: str, done: int, total: int) -> None:
        """As :meth:`Progress.images_evaluated`."""
        self._send("images_evaluated", backbone, done, total)

    def round_finished(self, outcome: RoundOutcome) -> None:
        """As :meth:`Progress.round_finished`."""
        self._send("round_finished", *outcome)

    def message(self, text: str) -> None:
        """As :meth:`Progress.message`."""
        self._send("message", text)

    @contextmanager
    def phase(self, text: str) -> Iterator[None]:
        """As :meth:`Progress.phase`."""
        self._send("phase_started", text)
        yield
        self._send("phase_ended")

    def _send(self, event: str, *values: Any) -> None:
        self._channel.send({"event": event, "values": values})


def show(event: Mapping[str, Any], progress: Progress) -> None:
    """Shows what a :class:`RelayedProgress` sent."""
    shown: dict[str, Callable[..., None]] = {
        "round_started": progress.round_started,
        "client_asked": progress.client_asked,
        "client_done": progress.client_done,
        "images_evaluated": progress.images_evaluated,
        "round_finished": lambda *values: progress.round_finished(RoundOutcome(*values)),
        "message": progress.message,
        "phase_started": progress.phase_started,
        "phase_ended": progress.phase_ended,
    }
    shown[event["event"]](*event["values"])
