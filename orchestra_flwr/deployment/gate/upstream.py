"""The gate's connections to the SuperLink.

Each is an httpx transport of its own: a single one looks at all its connections for every
request, and with 32 clients at a time takes 2.8 ms of a core for a small one, where this takes 1.4.
(A client written on h11 for this purpose took 0.5: `benchmarks/gate_client.py`.)
"""

import asyncio
import contextlib
import math
import ssl
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from orchestra_flwr.flower.socket_client import HOST

CONNECT_SECONDS = 5.0
RESPONSE_SECONDS = 120.0  # without a byte; a SuperNode itself waits 30 s
IDLE_SECONDS = 4.0  # the SuperLink closes a connection that is idle for 5 s

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
    """An HTTP/1.1 client for the server at a socket; connections are used again."""

    def __init__(self, socket: Path, tls: ssl.SSLContext | None) -> None:
        self._socket = str(socket)
        self._origin = f"{'http' if tls is None else 'https'}://{HOST}"
        self._tls = tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which plain HTTP does not use
        self._idle: deque[tuple[float, httpx.AsyncHTTPTransport]] = deque()  # the latest last
        timeout = httpx.Timeout(RESPONSE_SECONDS, connect=CONNECT_SECONDS)
        self._extensions = {"timeout": timeout.as_dict()}
        self._answered = -math.inf  # when the last response began, by time.monotonic

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, headers: Headers, body: AsyncIterator[bytes]
    ) -> AsyncIterator[UpstreamResponse]:
        """Sends a request and gives the response.

        The headers say the body's length. If the body raises, the request ends with that.

        Raises:
            UpstreamError: there is no response, or (inside of the context) not all of one.
        """
        # A request that no httpx.Client has made: it has no headers but these and the host.
        request = httpx.Request(
            method,
            self._origin + path,
            headers=list(headers),
            content=body,
            extensions=self._extensions,
        )
        connection = await self._connection()
        try:
            with _upstream_errors():
                response = await connection.handle_async_request(request)
            self._answered = time.monotonic()
            assert isinstance(response.stream, httpx.AsyncByteStream)
            try:
                yield UpstreamResponse(
                    response.status_code,
                    {name.lower(): value for name, value in response.headers.raw},
                    _chunks(response.stream),
                )
            finally:
                await response.stream.aclose()  # the connection too, unless all of it was read
        except BaseException:
            await connection.aclose()
            raise
        self._idle.append((asyncio.get_running_loop().time(), connection))

    def seconds_silent(self) -> float:
        """Seconds since the server answered a request; infinite before it has."""
        return time.monotonic() - self._answered

    async def close(self) -> None:
        """Closes the connections that are not in use."""
        while self._idle:
            await self._idle.pop()[1].aclose()

    async def _connection(self) -> httpx.AsyncHTTPTransport:
        """A connection that is not in use, if possible one still open since its last request."""
        now = asyncio.get_running_loop().time()
        while self._idle and self._idle[0][0] < now - IDLE_SECONDS:
            await self._idle.popleft()[1].aclose()
        if self._idle:
            return self._idle.pop()[1]
        return httpx.AsyncHTTPTransport(
            verify=self._tls,
            uds=self._socket,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=IDLE_SECONDS),
        )


async def _chunks(stream: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    with _upstream_errors():
        async for chunk in stream:
            yield chunk


@contextlib.contextmanager
def _upstream_errors() -> Iterator[None]:
    try:
        yield
    except httpx.LocalProtocolError:
        raise  # of the request, not of the SuperLink
    except httpx.TransportError as error:
        raise UpstreamError(str(error) or type(error).__name__) from error
