"""One connection of a client to the gate: uvicorn's HTTP, with an end to every wait.

uvicorn limits neither the time nor the size of a request's head, and it queues requests that come
before the response to the one before. Checked against uvicorn 0.49: `HttpToolsProtocol`, whose
methods are those of asyncio and of its parser.
"""

import asyncio
from collections.abc import Callable

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from orchestra_flwr.deployment.gate.refusals import Refusals

# No limit is stricter than Flower's own: a SuperNode closes what it does not use for 5 s, and
# signs a request for the next 305 s.
IDLE_SECONDS = 75.0  # between two requests, and for the head of one
EXCHANGE_SECONDS = 900.0  # for a request and its response together
STRANGER_SECONDS = 10.0  # the same for a stranger, and for the rest of a request
MAX_HEAD_BYTES = 64 * 1024

STATE = "orchestra_flwr.connection"  # this connection, in the ASGI scope's state
_NO_REQUEST = "sent something that is no HTTP request"
_TLS_RECORD = b"\x16"  # the first byte of a handshake


class Connection(HttpToolsProtocol):
    """Reports and ends whatever is no request, comes out of turn, or takes too long.

    The rest of a request that was answered early is read and dropped: where a connection is closed
    in the middle, a SuperNode tries again for ever. `ended` is called when this one is closed.
    """

    def __init__(
        self,
        peer: str,
        refusals: Refusals,
        ended: Callable[[], None],
        config: Config,
        server_state: ServerState,
    ) -> None:
        super().__init__(config, server_state, app_state={STATE: self})
        self._peer = peer
        self._refusals = refusals
        self._ended = ended
        self._timer: asyncio.TimerHandle | None = None
        self._first_byte = b""
        self._head_bytes = 0  # of the head that is awaited or half received
        self._in_body = False
        self._hurried = False

    def hurry(self) -> None:
        """Marks the request as a stranger's: its rest, or another one, must come within seconds."""
        self._hurried = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first request."""
        super().connection_made(transport)
        self._limit(IDLE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the timer, and frees the place for another connection."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        self._ended()

    def data_received(self, data: bytes) -> None:
        """Parses what came, unless a head becomes too long."""
        if self.transport.is_closing():
            return
        self._first_byte = self._first_byte or data[:1]
        in_head, last = not self._in_body, self.cycle
        super().data_received(data)
        if in_head and self.cycle is last:  # no head has ended in these bytes
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._abort(f"sent a head of more than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        """A request begins.

        Raises:
            ValueError: before the response to the last one has ended; no client of Flower does so.
        """
        if self._is_answering:
            raise ValueError("a request came before its turn")
        super().on_message_begin()
        self._limit(IDLE_SECONDS, "did not end the head of a request")

    def on_headers_complete(self) -> None:
        """The application starts.

        Raises:
            ValueError: the target is no path of this server, as in a request to a proxy.
        """
        if not self.url.startswith(b"/"):
            raise ValueError("the target is no path")
        super().on_headers_complete()
        # Headers may follow the chunks, without end: the answer to such a request, which says no
        # length, ends the connection. No client of Flower sends one.
        if any(name == b"transfer-encoding" for name, _ in self.headers):
            self.cycle.keep_alive = False
        self._in_body, self._head_bytes, self._hurried = True, 0, False
        self._limit(EXCHANGE_SECONDS, "did not end a request and take its response")

    def on_message_complete(self) -> None:
        """The whole request has come."""
        super().on_message_complete()
        self._in_body = False
        if not self._is_answering:
            self._wait()

    def on_response_complete(self) -> None:
        """The whole response has been sent."""
        super().on_response_complete()
        if not self._in_body:
            self._wait()
        elif self._hurried:
            self._limit(STRANGER_SECONDS, "did not end a request that was answered")

    def send_400_response(self, msg: str) -> None:
        """Reports what cannot be parsed or comes out of turn, and closes the connection."""
        text = _NO_REQUEST
        if self._first_byte == _TLS_RECORD and self.scheme == "http":
            text = (
                "spoke TLS, but this server speaks plain text: start it with its keys "
                "(security=FOLDER), or that client with insecure=true"
            )
        if self._is_answering:  # another answer would stand in the middle of that one
            self._abort(text)
        else:
            self._refusals.report(self._peer, "http", text)
            super().send_400_response(msg)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        """Waits for the next request."""
        self._limit(STRANGER_SECONDS if self._hurried else IDLE_SECONDS)

    def _limit(self, seconds: float, failure: str = "") -> None:
        """Closes the connection after so many seconds; reports `failure` if there is one."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.transport.is_closing():
            text = failure and f"{failure} within {seconds:g} s"
            self._timer = self.loop.call_later(seconds, self._abort, text)

    def _abort(self, text: str) -> None:
        if text:
            self._refusals.report(self._peer, "http", text)
        self.transport.abort()
