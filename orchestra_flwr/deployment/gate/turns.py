"""In what order requests come to the SuperLink where there are more than it can answer at once.

A SuperLink that a thousand clients ask at once answers none of them in time, nor the server's own
app: each request that was given up is sent again. So few are under way at a time, and the others
wait at the gate, where that costs nothing. Clients that are connected do not wait for those that
still come, nor their heartbeats for anything else.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestra_flwr.deployment.gate.fleet_methods import HEARTBEAT, REGISTRATION_PATHS

UNDER_WAY = 8  # at once: a SuperLink is one thread of Python, and its app comes in between
COMING = 2  # of these, of clients that register
HEARTBEATS = 8  # beside these: who is connected stays so, whatever else there is to do
WAIT_SECONDS = 8.0
PAUSE_SECONDS = 0.05  # while heartbeats wait, nobody comes
LONG_WAIT_SECONDS = 20.0  # for heartbeats, and before the other; a SuperNode gives up after 30


class BusyError(Exception):
    """There was no turn in time; the client comes again by itself, at a time that it draws."""


class Turns:
    """Limits the requests that are under way at once; to be used in the gate's event loop."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(UNDER_WAY)
        self._coming = asyncio.Semaphore(COMING)
        self._heartbeats = asyncio.Semaphore(HEARTBEATS)

    @property
    def all_taken(self) -> bool:
        """Whether a request may have to wait for its turn."""
        return self._all.locked() or self._heartbeats.locked()

    @asynccontextmanager
    async def turn(self, path: str) -> AsyncIterator[None]:
        """Waits for the turn of a request, which the block has, or raises a BusyError."""
        limits = [(self._all, WAIT_SECONDS)]
        if coming := path in REGISTRATION_PATHS:
            limits.insert(0, (self._coming, LONG_WAIT_SECONDS))
        elif path == HEARTBEAT:
            limits = [(self._heartbeats, LONG_WAIT_SECONDS)]
        taken: list[asyncio.Semaphore] = []
        try:
            try:
                for limit, seconds in limits:
                    async with asyncio.timeout(seconds):
                        while coming and self._heartbeats.locked():
                            await asyncio.sleep(PAUSE_SECONDS)
                        await limit.acquire()
                    taken.append(limit)
            except TimeoutError:
                raise BusyError from None
            yield
        finally:
            for limit in taken:
                limit.release()
