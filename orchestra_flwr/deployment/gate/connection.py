"""One connection of a client to the gate: TLS, and the limits that uvicorn leaves open."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from orchestra_flwr.deployment.gate.refusals import Refusals

# No limit is stricter than Flower's own: a SuperNode gives up after 30 s without a byte, closes
# what it does not use for 5 s, and signs a request for the next 305 s.
HANDSHAKE_SECONDS = 30.0
IDLE_SECONDS = 75.0  # between two requests, and for the head of one
EXCHANGE_SECONDS = 900.0  # for a request and its response together
MOST_HEAD_BYTES = 64 * 1024
MOST_CONNECTIONS = 4096
MOST_OF_A_PEER = 2048

_UNTRUSTED = "does not trust our certificate: give that client our CA's file"
TLS_REASONS = {
    "HTTP_REQUEST": "spoke plain text to the TLS port: start that client without insecure=true",
    "TLSV1_ALERT_UNKNOWN_CA": _UNTRUSTED,
    "TLSV1_ALERT_DECRYPT_ERROR": _UNTRUSTED,  # its CA has the name of ours, and another key
    "SSLV3_ALERT_BAD_CERTIFICATE": "refused our certificate: it does not hold the name or address "
    "that the client connects to, or the client's clock is before its first day",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "refused our certificate: it has expired, or the client's "
    "clock is ahead",
    "UNSUPPORTED_PROTOCOL": "speaks only versions of TLS that are no longer safe",
    "WRONG_VERSION_NUMBER": "sent something that is no TLS",
    "UNEXPECTED_EOF_WHILE_READING": "closed the connection in the middle of the TLS handshake",
}


@dataclass
class Listener:
    """What the connections of one gate share.

    Args:
        tls: None: plain HTTP.
        refusals: where they tell whom they turned away.
        most: so many may be open.
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


class Connection(HttpToolsProtocol):
    """Uvicorn's HTTP with TLS failures that are told, and with every wait and head bounded.

    Uvicorn would do TLS itself, but a failed handshake leaves no trace there.
    """

    def __init__(
        self,
        listener: Listener,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._listener = listener
        self._peer = ""
        self._counted = False  # among the listener's connections
        self._begun = False  # HTTP; before it there may be TLS
        self._lost = False
        self._handshake: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._first = b""
        self._in_head = False
        self._in_message = False
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts with TLS where the gate has it."""
        self._peer = peer_name(transport.get_extra_info("peername"))
        self._counted = self._listener.admit(self._peer)
        if not self._counted:
            transport.abort()
        elif self._listener.tls is None:
            self._begin(transport)
        else:
            transport.pause_reading()  # the client's first bytes are not for HTTP
            self._handshake = self.loop.create_task(self._secure(transport, self._listener.tls))

    def connection_lost(self, exc: Exception | None) -> None:
        """Leaves nothing behind."""
        self._lost = True
        self._release()
        if self._timer is not None:
            self._timer.cancel()
        if self._begun:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses what came; refuses a head without end."""
        if not self._begun:  # the client's first bytes may come with the end of the handshake
            self._early.append(data)
            return
        if self.transport.is_closing():
            return
        self._first = self._first or data[:1]
        in_head = self._in_head
        super().data_received(data)
        if in_head and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._abort(f"sent a head of more than {MOST_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._in_message or not (self.cycle is None or self.cycle.response_complete):
            raise ValueError("no client of Flower pipelines requests")
        super().on_message_begin()
        self._in_head = self._in_message = True
        self._head_bytes = 0
        self._limit(IDLE_SECONDS, "did not end the head of a request")

    def on_headers_complete(self) -> None:
        """The head is there: the application starts."""
        self._in_head = False
        if not self.url.startswith(b"/"):
            raise ValueError("a request to a proxy")
        super().on_headers_complete()
        self._limit(EXCHANGE_SECONDS, "did not end a request and take its response")

    def on_message_complete(self) -> None:
        """The request is there as a whole."""
        super().on_message_complete()
        self._in_message = False
        if self.cycle.response_complete:
            self._limit(IDLE_SECONDS)

    def on_response_complete(self) -> None:
        """The response is out; what is left of a refused request is still read and dropped."""
        super().on_response_complete()
        if not self._in_message:
            self._limit(IDLE_SECONDS)

    def send_400_response(self, msg: str) -> None:
        """Tells the operator as well."""
        if self._first == b"\x16" and self._listener.tls is None:
            text = "spoke TLS, but this server runs with insecure=true: that client needs it too"
        else:
            text = "sent something that is no HTTP request"
        self._listener.refusals.report(self._peer, "http", text)
        if self.cycle is not None and self.cycle.response_started:
            self.transport.abort()  # in the middle of a response is no place for another
        else:
            super().send_400_response(msg)

    async def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            secured = await self.loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:  # which ssl.SSLError is
            self._listener.refusals.report(self._peer, "tls", _tls_reason(error))
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
        self._begun = True
        super().connection_made(transport)
        self._limit(IDLE_SECONDS)

    def _release(self) -> None:
        if self._counted:
            self._counted = False
            self._listener.release(self._peer)

    def _limit(self, seconds: float, otherwise: str = "") -> None:
        """From now on the client has so many seconds, otherwise that is told and it is over."""
        if self._timer is not None:
            self._timer.cancel()
        told = otherwise and f"{otherwise} within {seconds:g} s"
        self._timer = self.loop.call_later(seconds, self._abort, told)

    def _abort(self, text: str) -> None:
        if text:
            self._listener.refusals.report(self._peer, "http", text)
        self.transport.abort()


def peer_name(address: Sequence[object] | None) -> str:
    """The address of a peer without its port, an IPv4 one also where the socket is IPv6."""
    return str(address[0]).removeprefix("::ffff:") if address else "a peer already gone"


def _tls_reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return TLS_REASONS.get(error.reason, f"failed in the TLS handshake ({error.reason})")
    if isinstance(error, ConnectionAbortedError):
        return f"did not end the TLS handshake within {HANDSHAKE_SECONDS:g} s"
    return "closed the connection before a TLS handshake (a scan or a health check?)"
