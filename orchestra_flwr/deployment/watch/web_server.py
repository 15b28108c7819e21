"""A small HTTP server that shows a few things and takes nothing."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.addresses import is_loopback, listen

_log = logging.getLogger(__name__)
MAX_CONNECTIONS = 16  # at a time; more are closed at once
SECONDS = 10.0  # that a connection may take, whatever it does
HEADERS = {  # unless an answer has others
    "Connection": "close",  # none is cut in the middle of a later answer
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


@contextmanager
def serving(host: str, port: int, paths: Mapping[str, Callable[[], Response]]) -> Iterator[int]:
    """Answers GET requests until the block ends; yields the port.

    The functions that make the answers are called from several threads.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    with listen(host, port, "watch.") as listening:
        config = uvicorn.Config(
            _Application(paths, local=is_loopback(host)),
            http=_Connection,
            loop="asyncio",
            ws="none",
            lifespan="off",
            server_header=False,
            log_config=None,
            log_level="critical",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), name="watch", daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


class _Connection(H11Protocol):  # whose parser limits a request's head
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # A limit of idle time alone would let a request come byte by byte for hours.
        full = len(self.connections) > MAX_CONNECTIONS
        self.loop.call_later(0 if full else SECONDS, transport.abort)


class _Application:
    def __init__(self, paths: Mapping[str, Callable[[], Response]], *, local: bool) -> None:
        self._paths = paths
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await run_in_threadpool(self._answer, Request(scope))
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    def _answer(self, request: Request) -> Response:
        path = request.scope["path"]
        if self._local and not _names_loopback(request.headers.get("Host", "")):
            # Another site may have pointed its own name here, to read this as its own.
            return line("this address is for this machine alone", 403)
        if request.method not in ("GET", "HEAD"):
            return line("nothing is taken here", 405)
        if path not in self._paths:
            return line(f"not found; there are {', '.join(self._paths)}", 404)
        try:
            return self._paths[path]()
        except ConfigError as error:  # a library is not installed
            return line(str(error), 501)
        except Exception:  # what is watched goes on
            _log.exception("%s cannot be shown", path)
            return line("cannot be shown: the log says why", 500)


def line(text: str, status: int) -> Response:
    """An answer of one line."""
    return PlainTextResponse(f"{text}\n", status)


def _names_loopback(host: str) -> bool:
    """Whether a Host header names this machine; without one it is no browser."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return not name or is_loopback(name)
