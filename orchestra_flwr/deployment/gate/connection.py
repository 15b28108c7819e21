"""One connection of a client to the gate: TLS, and the limits that uvicorn leaves open.

uvicorn makes a :class:`Connection` for each client (its option `http` takes any asyncio protocol).
It passes every byte on to uvicorn's own HTTP protocol, whose methods it uses as asyncio does. Where
a request begins and ends it learns from :func:`observed`, an ASGI middleware.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from orchestra_flwr.deployment.gate.refusals import Refusals
from orchestra_flwr.deployment.gate.tls import HANDSHAKE_SECONDS, handshake_failure

# No limit is stricter than Flower's own: a SuperNode closes what it does not use for 5 s, and
# signs a request for the next 305 s.
IDLE_SECONDS = 75.0  # between two requests, and for the head of one
EXCHANGE_SECONDS = 900.0  # for a request and its response together
MOST_HEAD_BYTES = 64 * 1024
MOST_CONNECTIONS = 4096
MOST_OF_A_PEER = 2048

_STATE = "orchestra_flwr.connection"  # in the ASGI scope's state
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_NO_REQUEST = "sent something that is no HTTP request"


@dataclass
class Admission:
    """Counts the open connections of a gate, and refuses those above its limits.

    Args:
        tls: None: plain HTTP.
        refusals: for reports of clients that were turned away.
        most: so many connections may be open.
    """

    tls: ssl.SSLContext | None
    refusals: Refusals
    most: int = MOST_CONNECTIONS
    open: Counter[str] = field(default_factory=Counter)  # connections by peer
    total: int = 0

    def admit(self, peer: str) -> bool:
        """Counts a new connection, unless there are too many."""
        if self.total >= self.most or self.open[peer] >= MOST_OF_A_PEER:
            text = (
                f"has {self.open[peer]} of {self.total} connections, and gets no more (a peer may "
                f"have {MOST_OF_A_PEER}, all together {self.most})"
            )
            self.refusals.report(peer, "connections", text)
            return False
        self.open[peer] += 1
        self.total += 1
        return True

    def release(self, peer: str) -> None:
        """Forgets a connection that was counted."""
        self.total -= 1
        self.open[peer] -= 1
        if not self.open[peer]:
            del self.open[peer]


class Connection(asyncio.Protocol):
    """TLS, limits and reports around uvicorn's HTTP protocol.

    uvicorn would do TLS itself, but reports no failed handshake, and it limits neither the time nor
    the size of a request's head. Every wait of a client has an end here, and a request is refused
    that another server might read in another way.
    """

    def __init__(
        self,
        admission: Admission,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._loop = _loop or asyncio.get_running_loop()
        self._http = HttpToolsProtocol(
            config=config,
            server_state=server_state,
            app_state={**app_state, _STATE: self},
            _loop=_loop,
        )
        self._admission = admission
        self._transport: asyncio.Transport | None = None  # of HTTP; before it there may be TLS
        self._peer = ""
        self._admitted = False
        self._lost = False
        self._handshake: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._first = b""
        self._timer: asyncio.TimerHandle | None = None
        self._in_exchange = False
        self._request_ended = True
        self._start = b""  # of the head that is awaited
        self._received = 0  # bytes of the present request, its head included
        self._allowed = MOST_HEAD_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts with TLS where the gate has it."""
        assert isinstance(transport, asyncio.Transport)
        self._peer = peer_name(transport.get_extra_info("peername"))
        self._admitted = self._admission.admit(self._peer)
        if not self._admitted:
            transport.abort()
        elif self._admission.tls is None:
            self._begin(transport)
        else:
            transport.pause_reading()  # the client's first bytes are not for HTTP
            self._handshake = self._loop.create_task(self._secure(transport, self._admission.tls))

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the timer and gives the place to another client."""
        self._lost = True
        self._release()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._http.connection_lost(exc)

    def eof_received(self) -> None:
        """The client sends no more: asyncio closes the connection."""

    def pause_writing(self) -> None:
        """The client takes a response slowly: the application waits."""
        if self._transport is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        """The application goes on."""
        if self._transport is not None:
            self._http.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Passes on what came, unless it is too much or no request."""
        if self._transport is None:  # the first bytes may come with the end of the handshake
            self._early.append(data)
            return
        if self._transport.is_closing():
            return
        self._first = self._first or data[:1]
        if self._in_exchange and self._request_ended and data.strip(b"\r\n"):
            self._abort(_NO_REQUEST)  # no client of Flower pipelines requests
            return
        if not self._in_exchange and not self._may_begin(data):
            self._refuse()
            self._transport.write(_BAD_REQUEST)
            self._transport.close()
            return
        self._received += len(data)
        self._http.data_received(data)
        if self._transport.is_closing():  # uvicorn could not parse it, and has said so
            self._refuse()
        elif self._received > self._allowed:
            # The request's head may have ended in these bytes: its application starts before this.
            self._loop.call_soon(self._check_size)

    def begin_exchange(self, length: int) -> bool:
        """The head of a request is there; False where it came before its turn.

        Args:
            length: of the request's body, in bytes.
        """
        in_turn = self._received > 0
        self._in_exchange, self._request_ended = True, False
        self._start, self._allowed = b"", MOST_HEAD_BYTES + length
        self._limit(EXCHANGE_SECONDS, "did not end a request and take its response")
        if not in_turn:
            self._refuse()
        return in_turn

    def end_request(self) -> None:
        """All of the request is there."""
        self._request_ended = True

    def end_exchange(self) -> None:
        """All of the response is out."""
        self._in_exchange = False
        self._received, self._allowed = 0, MOST_HEAD_BYTES
        self._limit(IDLE_SECONDS)

    def _may_begin(self, data: bytes) -> bool:
        """Takes the first bytes of a request; False where its target is no path of this server."""
        start = (self._start + data[:MOST_HEAD_BYTES]).lstrip(b"\r\n")[:64]
        if start and not self._start:
            self._limit(IDLE_SECONDS, "did not end the head of a request")
        self._start = start
        target = start.partition(b" ")[2]
        return not target or target.startswith(b"/")

    def _check_size(self) -> None:
        if self._received > self._allowed and not self._lost:
            text = f"sent a head of more than {MOST_HEAD_BYTES} bytes"
            if self._in_exchange:
                text = "sent more than the length that it announced"
            self._abort(text)

    async def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            secured = await self._loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:  # which ssl.SSLError is
            self._admission.refusals.report(self._peer, "tls", handshake_failure(error))
            transport.abort()
            self._release()
            return
        if secured is None or self._lost:
            self._release()
            return
        self._begin(secured)
        for data in self._early:
            self.data_received(data)
        self._early.clear()

    def _begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._http.connection_made(transport)
        self._limit(IDLE_SECONDS)

    def _release(self) -> None:
        if self._admitted:
            self._admitted = False
            self._admission.release(self._peer)

    def _limit(self, seconds: float, otherwise: str = "") -> None:
        """From now on the client has so many seconds, otherwise it is reported and cut off."""
        if self._lost:
            return
        if self._timer is not None:
            self._timer.cancel()
        text = otherwise and f"{otherwise} within {seconds:g} s"
        self._timer = self._loop.call_later(seconds, self._abort, text)

    def _refuse(self) -> None:
        text = _NO_REQUEST
        if self._first == b"\x16" and self._admission.tls is None:
            text = "spoke TLS, but this server runs with insecure=true: that client needs it too"
        self._admission.refusals.report(self._peer, "http", text)

    def _abort(self, text: str) -> None:
        if text:
            self._admission.refusals.report(self._peer, "http", text)
        assert self._transport is not None
        self._transport.abort()


def observed(application: ASGIApp) -> ASGIApp:
    """An ASGI middleware: shows an application's :class:`Connection` where its requests end.

    A response's last part waits for the rest of its request, which is read and dropped: a
    connection that is closed in the middle would only make a SuperNode try again, for ever.
    """

    async def observe(scope: Scope, receive: Receive, send: Send) -> None:
        connection = cast(Connection, scope["state"][_STATE])
        headers = dict(scope["headers"])
        length = int(headers.get(b"content-length", 0))
        ended = False

        async def receive_and_observe() -> Message:
            nonlocal ended
            event = await receive()
            if not event.get("more_body"):  # a disconnection has none
                ended = True
                connection.end_request()
            return event

        async def send_and_observe(event: Message) -> None:
            last = event["type"] == "http.response.body" and not event.get("more_body")
            while last and length and not ended:
                await receive_and_observe()
            await send(event)
            if last:
                connection.end_exchange()

        if connection.begin_exchange(length):
            await application(scope, receive_and_observe, send_and_observe)
        else:
            close = [(b"content-length", b"0"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 400, "headers": close})
            await send({"type": "http.response.body"})

    return observe


def peer_name(address: Sequence[object] | None) -> str:
    """The address of a peer without its port, an IPv4 one also where the socket is IPv6."""
    return str(address[0]).removeprefix("::ffff:") if address else "a peer already gone"
