"""A small HTTP server that shows a few things and takes nothing."""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.addresses import is_loopback

_log = logging.getLogger(__name__)
MAX_CONNECTIONS = 16  # at a time; more are closed at once
SECONDS = 10.0  # that a connection may take, whatever it does
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
NOTHING = "default-src 'none'; frame-ancestors 'none'"  # a Content-Security-Policy


@dataclass(frozen=True)
class Answer:
    """What is sent for a path."""

    body: bytes
    type: str = "text/plain; charset=utf-8"
    status: int = 200
    policy: str = NOTHING  # what a browser may do with it, a Content-Security-Policy

    @classmethod
    def line(cls, text: str, status: int) -> Answer:
        """One line of text."""
        return cls(f"{text}\n".encode(), status=status)

    @classmethod
    def json(cls, values: Mapping[str, Any]) -> Answer:
        """A JSON object; it must hold neither NaN nor infinity, which JSON does not have."""
        return cls(json.dumps(values, allow_nan=False).encode(), "application/json")


@contextmanager
def serving(host: str, port: int, paths: Mapping[str, Callable[[], Answer]]) -> Iterator[int]:
    """Answers GET requests until the block ends; yields the port.

    What makes the answer for each path is called from several threads.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    try:
        server = _Server(host, port, paths)
    except (OSError, TypeError) as error:  # TypeError: a name that cannot even be looked up
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"watch.host={host} watch.port={port}: {reason}: give another address of this machine, "
            "or watch.port=0 for any free port"
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="watch", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False  # which later Pythons would allow: two servers at one port

    def __init__(self, host: str, port: int, paths: Mapping[str, Callable[[], Answer]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.paths = paths
        self.local = is_loopback(host)
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # without HTTPServer's question to DNS, which may take minutes
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A timeout alone would let a request come byte by byte for hours.
        end = threading.Timer(SECONDS, partial(_cut, request))
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: the other side has gone."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.server.local and not _names_loopback(self.headers.get("Host", "")):
            # A page elsewhere may have had its own name lead here, to read this as its own.
            self._send(Answer.line("this address is for this machine alone", 403))
        elif path not in self.server.paths:
            paths = ", ".join(self.server.paths)
            self._send(Answer.line(f"not found; there are {paths}", 404))
        else:
            try:
                answer = self.server.paths[path]()
            except ConfigError as error:  # a library is not installed
                answer = Answer.line(str(error), 501)
            except Exception:  # what is watched goes on
                _log.exception("%s cannot be shown", path)
                answer = Answer.line("cannot be shown: the log says why", 500)
            self._send(answer)

    do_HEAD = do_GET  # noqa: N815 (the library looks for this name)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self._send(Answer.line(message or "refused", code))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a scrape every few seconds would fill the log."""

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        headers = {**HEADERS, "Content-Security-Policy": answer.policy}
        headers |= {"Content-Type": answer.type, "Content-Length": str(len(answer.body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _names_loopback(host: str) -> bool:
    """Whether a Host header names this machine; without one it is no browser."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return name in ("", "localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
