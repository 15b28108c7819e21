"""A run's progress: sent through a channel, shown at its other end."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from orchestra_flwr.deployment.channel.json_pipe import Channel
from orchestra_flwr.reporting import Progress, RoundOutcome


def _relayed(event: str) -> Callable[..., None]:
    """A method of :class:`Progress` that sends its arguments."""

    def send(self: "RelayedProgress", *values: Any) -> None:
        self.channel.send({"event": event, "values": values})

    return send


class RelayedProgress(Progress):
    """Sends every event through a channel; :func:`show` is its other end.

    Raises:
        ChannelClosedError: in every method, when nobody listens any more: the run ends.
    """

    def __init__(self, channel: Channel, rounds: int) -> None:
        super().__init__(rounds)
        self.channel = channel

    round_started = _relayed("round_started")
    client_asked = _relayed("client_asked")
    client_came = _relayed("client_came")
    client_done = _relayed("client_done")
    images_evaluated = _relayed("images_evaluated")
    round_finished = _relayed("round_finished")
    message = _relayed("message")
    phase_started = _relayed("phase_started")
    phase_ended = _relayed("phase_ended")

    @contextmanager
    def phase(self, text: str) -> Iterator[None]:
        """Sends its start, and its end where nothing fails."""
        self.phase_started(text)
        yield
        self.phase_ended()


def show(event: Mapping[str, Any], progress: Progress) -> None:
    """Shows what a :class:`RelayedProgress` sent."""
    name, values = event["event"], event["values"]
    if name == "round_finished":
        values = [RoundOutcome(*values[0])]
    getattr(progress, name)(*values)
