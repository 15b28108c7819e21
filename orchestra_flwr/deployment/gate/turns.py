"""The order in which requests reach the SuperLink, if there are more than it can answer at once.

A SuperLink that a thousand clients ask at once answers none of them in time, nor the server's own
app: each request that was given up is sent again. So only a few are under way at a time, and the
others wait at the gate, where that costs nothing. Connected clients do not wait for those that
still register, nor do heartbeats wait for anything else.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

from orchestra_flwr.deployment.gate.fleet_methods import HEARTBEAT, REGISTRATION_PATHS

UNDER_WAY = 8  # at once: a SuperLink is one thread of Python, and its app comes in between
COMING = 2  # of these, of clients that register
HEARTBEATS = 8  # beside these: a connected client stays so, whatever else there is to do
WAIT_SECONDS = 8.0
PAUSE_SECONDS = 0.05  # between two looks: no client registers while heartbeats wait
LONG_WAIT_SECONDS = 20.0  # for heartbeats and registrations; a SuperNode gives up after 30


class BusyError(Exception):
    """There was no turn in time; the client tries again by itself, at a random time."""


class Turns:
    """Limits the requests that are under way at once; to be used in the gate's event loop."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(UNDER_WAY)
        self._coming = asyncio.Semaphore(COMING)
        self._heartbeats = asyncio.Semaphore(HEARTBEATS)
        self._heartbeat_of: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()

    @property
    def all_taken(self) -> bool:
        """Whether a request may have to wait for its turn."""
        return self._all.locked() or self._heartbeats.locked()

    @asynccontextmanager
    async def turn(self, path: str, client: bytes = b"") -> AsyncIterator[None]:
        """Waits for a turn, and holds it during the block.

        Args:
            path: of the request.
            client: its key; only one heartbeat of a key has a turn at a time; empty: not known.

        Raises:
            BusyError: there was none in time.
        """
        limits: list[tuple[asyncio.Semaphore | asyncio.Lock, float]] = [(self._all, WAIT_SECONDS)]
        if coming := path in REGISTRATION_PATHS:
            limits.insert(0, (self._coming, LONG_WAIT_SECONDS))
        elif path == HEARTBEAT:
            limits = [(self._heartbeats, LONG_WAIT_SECONDS)]
            if client:  # else one client that sends them without end would keep others from coming
                lock = self._heartbeat_of.setdefault(client, asyncio.Lock())
                limits.insert(0, (lock, LONG_WAIT_SECONDS))
        async with AsyncExitStack() as taken:
            try:
                for limit, seconds in limits:
                    async with asyncio.timeout(seconds):
                        while coming and self._heartbeats.locked():
                            await asyncio.sleep(PAUSE_SECONDS)
                        await taken.enter_async_context(limit)
            except TimeoutError:
                raise BusyError from None
            yield
