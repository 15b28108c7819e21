"""One end of a pipe between two of our processes: JSON objects, never pickle."""

import json
import threading
from multiprocessing.connection import Connection
from typing import Any, Self


class ChannelClosedError(ConnectionError):
    """The process at the other end has closed it, or has ended."""


class Channel:
    """One end; a context manager that closes it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, event: dict[str, Any]) -> None:
        """Sends a JSON object, from any thread; ChannelClosedError: nobody can receive it."""
        try:
            with self._sending:
                self._connection.send_bytes(json.dumps(event).encode())
        except OSError as error:
            raise ChannelClosedError(f"the other end of a channel is closed: {error}") from None

    def receive(self) -> dict[str, Any]:
        """Waits for the next JSON object; ChannelClosedError: none can come any more."""
        try:
            event: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise ChannelClosedError(f"the other end of a channel is closed: {error}") from None
        return event

    def ready(self, seconds: float) -> bool:
        """Whether there is something to receive, or the end, within so many seconds."""
        return self._connection.poll(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()
