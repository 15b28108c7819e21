"""The way between one client and the gate: it can be cut, it can stall, and it can be listened to.

Whoever listens needs the server's own key: TLS ends here and begins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self


class Link:
    """A TCP proxy on a free port of 127.0.0.1.

    Args:
        target: the port on this machine to which connections lead.
        security: a server's folder of keys, to listen to what is said; None: bytes pass as they
            are.

    Attributes:
        port: where it listens.
        requests: the HTTP requests of the client, if it is listened to.
        answered: bytes that came from the target.
    """

    def __init__(self, target: int, security: Path | None = None) -> None:
        self._target = target
        self._tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
        if security is not None:
            inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            inside.load_cert_chain(security / "server.crt", security / "server.key")
            self._tls = inside, ssl.create_default_context(cafile=security / "ca.crt")
        self.requests: list[bytes] = []
        self.answered = 0
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._flows, self._over = asyncio.Event(), asyncio.Event()
        self._flows.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._over.set)
        self._thread.join()

    def cut(self) -> None:
        """Resets all connections, and every new one at once."""
        self._is_cut = True
        self._do(lambda: [writer.transport.abort() for writer in [*self._writers]])

    def stall(self) -> None:
        """Nothing passes any more, and nobody notices."""
        self._do(self._flows.clear)

    def mend(self) -> None:
        """Bytes pass again, those that were held up as well."""
        self._is_cut = False
        self._do(self._flows.set)

    def _do(self, action: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(action)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        inside = self._tls[0] if self._tls else None
        server = await asyncio.start_server(self._connect, sock=self._listening, ssl=inside)
        await self._over.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._flows.set()
        await asyncio.sleep(0)  # pumps see that their ends are gone

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            outside = self._tls[1] if self._tls else None
            up_reader, up_writer = await asyncio.open_connection(
                "127.0.0.1", self._target, ssl=outside
            )
            self._writers |= {writer, up_writer}
            listen = requests_of(self.requests) if self._tls else None
            both = (
                self._pump(reader, up_writer, listen),
                self._pump(up_reader, writer, self._count),
            )
            await asyncio.gather(*both, return_exceptions=True)
            self._writers -= {writer, up_writer}
        writer.transport.abort()

    def _count(self, data: bytes) -> None:
        self.answered += len(data)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        listen: Callable[[bytes], None] | None,
    ) -> None:
        try:
            while data := await reader.read(65536):
                await self._flows.wait()
                if listen is not None:
                    listen(data)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


def requests_of(found: list[bytes]) -> Callable[[bytes], None]:
    """Takes a connection's bytes as they come, and adds whole HTTP requests to a list."""
    buffer = bytearray()

    def listen(data: bytes) -> None:
        buffer.extend(data)
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(buffer[: end + 4])
            length = int(header(head, "content-length") or 0)
            if len(buffer) < len(head) + length:
                return
            found.append(bytes(buffer[: len(head) + length]))
            del buffer[: len(head) + length]

    return listen


def header(request: bytes, name: str) -> str | None:
    """A header of an HTTP request."""
    for line in request.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name.encode():
            return value.strip().decode()
    return None


def with_header(request: bytes, name: str, value: str) -> bytes:
    """The request with another value of a header that it has."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [
        line.partition(b":")[0] + b": " + value.encode()
        if line.partition(b":")[0].strip().lower() == name.encode()
        else line
        for line in head.split(b"\r\n")
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def post(port: int, request: bytes, ca: Path) -> int:
    """Sends the bytes of a request to the gate; the status of the answer."""
    context = ssl.create_default_context(cafile=ca)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(request)
        answer = connection.recv(4096)
    return int(answer.split(b" ", 2)[1])
