"""A local channel between Flower's app processes and ours: JSON and raw bytes, never pickle.

Flower starts a fresh process for every message to a client, and the server's app in a process of
its own. Ours live on, with what is slow to make: imports, decoded images, a display.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

FRAME = struct.Struct("!Q")
LARGEST = 1 << 40  # a length above it is no frame of ours
SOCKET = "channel"  # its name in a folder


class ChannelClosedError(ConnectionError):
    """The other side has closed the connection."""


class Channel:
    """One end of a connection; a context manager that closes it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @classmethod
    def connect(cls, address: str) -> Self:
        """Connects to a :class:`ChannelListener`.

        Raises:
            ChannelClosedError: nobody listens there.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address)
        except OSError as error:
            connection.close()
            raise ChannelClosedError(f"nobody listens at {address}: {error}") from None
        return cls(connection)

    def send(self, header: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        """Sends a JSON header and any number of byte strings.

        Raises:
            ChannelClosedError: the other side has closed the connection.
        """
        frames = [json.dumps({"header": header, "blobs": len(blobs)}).encode(), *blobs]
        try:
            for frame in frames:
                self._socket.sendall(FRAME.pack(len(frame)))
                self._socket.sendall(frame)
        except OSError as error:
            raise ChannelClosedError(f"the other side of a channel has ended: {error}") from None

    def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        """Waits for what the other side sends next.

        Raises:
            ChannelClosedError: the other side has closed the connection.
        """
        opening = json.loads(self._frame())
        return opening["header"], [self._frame() for _ in range(opening["blobs"])]

    def share(self, file: IO[bytes]) -> None:
        """Gives the other side an open file, with the locks on it: it calls :meth:`take_share`.

        Raises:
            ChannelClosedError: the other side has closed the connection.
        """
        try:
            socket.send_fds(self._socket, [b"\0"], [file.fileno()])
        except OSError as error:
            raise ChannelClosedError(f"the other side of a channel has ended: {error}") from None

    def take_share(self) -> int:
        """The descriptor of the file that the other side shares; open until it is closed.

        Raises:
            ChannelClosedError: the other side has closed the connection, or shares nothing.
        """
        try:
            _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        except OSError as error:
            raise ChannelClosedError(f"the other side of a channel has ended: {error}") from None
        if not descriptors:
            raise ChannelClosedError("the other side of a channel shares no file")
        return descriptors[0]

    def ready(self, seconds: float) -> bool:
        """Waits so long at most; whether there is something to receive, be it the end."""
        return _readable(self._socket, seconds)

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _frame(self) -> bytes:
        (length,) = FRAME.unpack(self._read(FRAME.size))
        if length > LARGEST:
            raise ChannelClosedError("the other side of a channel does not speak its language")
        return bytes(self._read(length))

    def _read(self, length: int) -> bytearray:
        buffer = bytearray(length)
        view, done = memoryview(buffer), 0
        while done < length:
            try:
                count = self._socket.recv_into(view[done:])
            except OSError as error:
                raise ChannelClosedError(
                    f"the other side of a channel has ended: {error}"
                ) from None
            if count == 0:
                raise ChannelClosedError("the other side of a channel has ended")
            done += count
        return buffer


def channel_address(folder: Path) -> str:
    """What :meth:`Channel.connect` takes for the listener in a folder."""
    return str(folder / SOCKET)


class ChannelListener:
    """Accepts channels at a socket in `folder`, which only its owner may enter.

    Attributes:
        address: what :meth:`Channel.connect` takes.
    """

    def __init__(self, folder: Path) -> None:
        self.address = channel_address(folder)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.address)
        self._socket.listen()

    def accept(self, seconds: float) -> Channel | None:
        """The next connection; None if none comes in so many seconds."""
        if not _readable(self._socket, seconds):
            return None
        return Channel(self._socket.accept()[0])

    def close(self) -> None:
        """Nobody can connect any more."""
        self._socket.close()


def _readable(waiting: socket.socket, seconds: float) -> bool:
    """Waits so long at most; `select.select` would refuse a descriptor above 1023."""
    poll = select.poll()
    poll.register(waiting, select.POLLIN)
    return bool(poll.poll(1000 * seconds))
