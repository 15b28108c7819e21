"""The gate's connections to the SuperLink.

httpx would do, but takes 2.6 ms of a core for a small request where this takes 1.1, and a
federation sends mostly small ones: every client asks for work every 3 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

import h11

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 120.0  # without a byte; a SuperNode itself waits 30 s
KEEP_SECONDS = 4.0  # the SuperLink closes what is idle for 5 s
CHUNK_BYTES = 256 * 1024

Headers = Iterable[tuple[bytes, bytes]]


class UpstreamError(Exception):
    """The SuperLink is not there, does not answer, or broke off."""


@dataclass(frozen=True)
class UpstreamResponse:
    """The head of a response, and its body, which is read while the request's context is open."""

    status: int
    headers: dict[bytes, bytes]
    body: AsyncIterator[bytes]


class Upstream:
    """An HTTP/1.1 client for one server, whose connections it keeps.

    Args:
        address: the server's `host:port`.
        tls: what its certificate is checked with; None: plain HTTP.
    """

    def __init__(self, address: str, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._tls = tls
        self._idle: deque[_Connection] = deque()  # the one used last is at the end

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, headers: Headers, body: AsyncIterator[bytes]
    ) -> AsyncIterator[UpstreamResponse]:
        """Sends a request and gives the response.

        Args:
            method: of HTTP.
            path: of HTTP.
            headers: with the length of the body.
            body: if it raises, the request ends with that.

        Raises:
            UpstreamError: there is no response, or (inside of the context) not all of one.
        """
        connection = await self._connect()
        try:
            host = (b"host", self._address.encode("ascii"))
            await connection.send(
                h11.Request(method=method, target=path, headers=[host, *headers]), body
            )
            yield await connection.receive()
        except BaseException:
            connection.abort()
            raise
        if connection.reusable():
            self._idle.append(connection)
        else:
            connection.abort()

    def close(self) -> None:
        """Closes the connections that are not in use."""
        while self._idle:
            self._idle.pop().abort()

    async def _connect(self) -> _Connection:
        now = asyncio.get_running_loop().time()
        while self._idle and self._idle[0].used < now - KEEP_SECONDS:
            self._idle.popleft().abort()
        while self._idle:
            if (connection := self._idle.pop()).open:
                return connection
            connection.abort()
        host, _, port = self._address.rpartition(":")
        with _upstream_errors():
            async with asyncio.timeout(CONNECT_SECONDS):
                streams = await asyncio.open_connection(
                    host, int(port), ssl=self._tls, limit=CHUNK_BYTES
                )
        return _Connection(*streams)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self.used = 0.0

    @property
    def open(self) -> bool:
        return not (self._reader.at_eof() or self._writer.is_closing())

    async def send(self, request: h11.Request, body: AsyncIterator[bytes]) -> None:
        unsent = self._http.send(request) or b""  # goes out with the first chunk
        async for chunk in body:
            await self._write(unsent + (self._http.send(h11.Data(chunk)) or b""))
            unsent = b""
        await self._write(unsent + (self._http.send(h11.EndOfMessage()) or b""))

    async def receive(self) -> UpstreamResponse:
        while not isinstance(event := await self._next_event(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise UpstreamError("closed the connection")
        return UpstreamResponse(event.status_code, dict(event.headers), self._body())

    def reusable(self) -> bool:
        """Gets ready for the next request, where this one came to its end."""
        if {self._http.our_state, self._http.their_state} != {h11.DONE}:
            return False
        self._http.start_next_cycle()
        self.used = asyncio.get_running_loop().time()
        return True

    def abort(self) -> None:
        self._writer.transport.abort()

    async def _body(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next_event(), h11.Data):
            yield bytes(event.data)

    async def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        with _upstream_errors():
            while (event := self._http.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(ANSWER_SECONDS):
                    self._http.receive_data(await self._reader.read(CHUNK_BYTES))
            return event

    async def _write(self, data: bytes) -> None:
        if data:
            with _upstream_errors():
                self._writer.write(data)
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._writer.drain()


@contextlib.contextmanager
def _upstream_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, h11.RemoteProtocolError) as error:  # a timeout is an OSError
        raise UpstreamError(str(error) or type(error).__name__) from error
