"""Accepts the connections of clients: at most so many, and with TLS where the gate has it."""

import asyncio
import ipaddress
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from orchestra_flwr.deployment.gate.refusals import Refusals
from orchestra_flwr.deployment.gate.tls import HANDSHAKE_SECONDS, handshake_failure

MAX_CONNECTIONS = 4096
MAX_OF_A_PEER = 1024  # for some 300 clients behind one address
RESERVED_FILES = 512  # for the rest of this process
ACCEPTED_AT_ONCE = 100  # in one pass of the event loop, which is long where there is much to do
RETRY_SECONDS = 1.0  # after a connection that could not be accepted: no file or memory is left

# Makes a connection's protocol from the peer's address, and from what is called at its close.
MakeProtocol = Callable[[str, Callable[[], None]], asyncio.Protocol]


class Admission:
    """Accepts connections, and turns away those above the limits.

    uvicorn could do it, but reports no failed handshake.
    """

    def __init__(
        self, tls: ssl.SSLContext | None, refusals: Refusals, protocol: MakeProtocol
    ) -> None:
        self._tls = tls
        self._refusals = refusals
        self._protocol = protocol
        self._max_connections = _max_connections()
        self._open: Counter[str] = Counter()  # by network
        self._handshakes: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None

    def open(self, listening: socket.socket) -> None:
        """Accepts connections from now on; to be called in the gate's event loop."""
        self._listening = listening
        listening.setblocking(False)
        asyncio.get_running_loop().add_reader(listening, self._accept)

    def close(self) -> None:
        """Stops accepting connections."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if not self._accepts_one():
                return

    def _accepts_one(self) -> bool:
        """Accepts a connection, or turns it away; False where there is none."""
        assert self._listening is not None
        loop = asyncio.get_running_loop()
        try:
            connection, address = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False  # it is gone already
        except OSError:  # no file or memory is left
            loop.remove_reader(self._listening)
            loop.call_later(RETRY_SECONDS, self._accept_again)
            return False
        if not self._admits(peer := peer_name(address)):
            connection.close()
            return True
        self._open[network_of(peer)] += 1
        connection.setblocking(False)
        task = loop.create_task(self._begin(connection, peer))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)
        return True

    def _accept_again(self) -> None:
        if self._listening is not None:
            self.open(self._listening)

    async def _begin(self, connection: socket.socket, peer: str) -> None:
        release = partial(self._release, peer)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(self._protocol, peer, release),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self._tls else None,
            )
        except OSError as error:  # which ssl.SSLError is
            self._refusals.report(peer, why := handshake_failure(error), why)
            release()

    def _admits(self, peer: str) -> bool:
        used, total = self._open[network_of(peer)], self._open.total()
        if total < self._max_connections and used < MAX_OF_A_PEER:
            return True
        text = (
            f"has {used} of {total} connections, and gets no more (a peer may "
            f"have {MAX_OF_A_PEER}, all together {self._max_connections})"
        )
        self._refusals.report(peer, "connections", text)
        return False

    def _release(self, peer: str) -> None:
        network = network_of(peer)
        self._open[network] -= 1
        if not self._open[network]:
            del self._open[network]


def peer_name(address: Sequence[object] | None) -> str:
    """The address of a peer without its port; an IPv4 one stays so even on an IPv6 socket."""
    return str(address[0]).removeprefix("::ffff:") if address else "a peer already gone"


def network_of(peer: str) -> str:
    """What counts as one peer: an IPv4 address, or the 64 bits of IPv6 that a single host has."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.version == 4:
        return peer
    return str(ipaddress.ip_network((address, 64), strict=False))


def _max_connections() -> int:
    """Raises this process's limit of open files as needed; returns how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS + RESERVED_FILES  # one may need another to the SuperLink
    if 0 <= soft < wanted:  # below zero: no limit
        soft = wanted if hard < 0 else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < 0:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(soft - RESERVED_FILES, soft // 2) // 2)
