"""The gate: the only part of a server that listens on the network.

Flower's SuperLink serves its Fleet API (clients, every request signed), its Control API (start
any code; not authenticated) and its Runtime API (hand out the server's work; not authenticated)
at one address. So that is a socket that only its owner can reach, and the gate passes the Fleet API
on to it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from orchestra_flwr.deployment.addresses import listen
from orchestra_flwr.deployment.gate.admission import Admission
from orchestra_flwr.deployment.gate.connection import IDLE_SECONDS, Connection
from orchestra_flwr.deployment.gate.forward import Forwarder
from orchestra_flwr.deployment.gate.refusals import Refusals
from orchestra_flwr.deployment.gate.tls import client_context, server_context
from orchestra_flwr.deployment.gate.upstream import Upstream
from orchestra_flwr.deployment.keys.server_keys import ServerFiles

STOP_SECONDS = 2


class Gate:
    """Lets clients, and clients only, through to the SuperLink; runs in its own thread.

    Args:
        host: the address to listen on.
        port: the port to listen on; 0 takes a free one.
        upstream: the SuperLink's socket.
        tls: for both sides; None: plain HTTP on both.
        names: gives the registered clients' names by public key (PEM, as Flower's header holds
            it); None for one that the SuperLink does not have yet, and that may try again in a
            while. With TLS no other key is served. Called for every request: it has to be quick.
        report: takes a line for everything that is turned away; called from a thread of its own,
            for it may wait for a disk.

    Raises:
        ConfigError: a file of `tls` cannot be used.
    """

    def __init__(
        self,
        host: str,
        port: int,
        upstream: Path,
        *,
        tls: ServerFiles | None,
        names: Callable[[], Mapping[bytes, str | None]],
        report: Callable[[str], None],
    ) -> None:
        self.port = port
        self._host = host
        self._tls = server_context(tls)
        self._reports = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gate-reports")
        self._refusals = Refusals(lambda line: self._reports.submit(report, line))
        self._upstream = Upstream(upstream, client_context(tls))
        self._forwarder = Forwarder(self._upstream, names if tls else None, self._refusals)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the gate, which listens when this returns.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        server_socket = listen(self._host, self.port)
        self.port = server_socket.getsockname()[1]
        config = _http(self._forwarder)
        server = uvicorn.Server(config)
        admission = Admission(
            self._tls,
            self._refusals,
            lambda peer, ended: Connection(
                peer, self._refusals, ended, config, server.server_state
            ),
        )

        async def serve() -> None:
            admission.open(server_socket)
            await server.serve([])  # none of its own sockets
            admission.close()
            await self._upstream.close()
            self._refusals.close()

        def close() -> None:
            admission.close()
            self._forwarder.waiting.close()
            server.should_exit = True

        def run() -> None:
            with runner:
                runner.run(serve())

        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop, self._close = runner.get_loop(), close
        self._loop.set_exception_handler(_log_exception)
        self._thread = threading.Thread(target=run, name="gate", daemon=True)
        self._thread.start()

    def limit_replies(self, limit: int | None) -> None:
        """From now on a client may push so many bytes for one message; None: any number."""
        self._forwarder.reply_limit = limit

    def connected(self) -> list[bytes]:
        """The public key of each client that waits for a message; empty ones in plain text."""
        return self._forwarder.waiting.keys()

    def wake(self, node: int) -> None:
        """Lets a client, by its number at the SuperLink, know that there is a message for it."""
        self._in_loop(partial(self._forwarder.waiting.wake, node))

    def stop(self) -> None:
        """Closes every connection; requests under way get two seconds."""
        if self._thread is not None:
            self._in_loop(self._close)
            self._thread.join()
            self._reports.shutdown()  # once all lines are reported

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _in_loop(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(call)


def _log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """As asyncio, except for a harmless race in anyio 4.16.

    A wait at a Unix socket whose time is over is cancelled; if the socket becomes readable before
    its callback is removed, that sets the result of a future that is cancelled already (as in
    https://github.com/agronholm/anyio/issues/1267).
    """
    race = isinstance(context.get("exception"), asyncio.InvalidStateError)
    if not (race and "Future.set_result" in repr(context.get("handle"))):
        loop.default_exception_handler(context)


def _http(application: ASGIApp) -> uvicorn.Config:
    config = uvicorn.Config(
        application,
        http=HttpToolsProtocol,  # unused: the connections are ours
        loop="asyncio",
        timeout_keep_alive=int(IDLE_SECONDS),
        ws="none",
        lifespan="off",
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        access_log=False,
        log_config=None,
        log_level="critical",
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    config.load()
    return config
