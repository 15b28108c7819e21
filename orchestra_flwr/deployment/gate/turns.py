"""In what order requests come to the SuperLink where there are more than it can answer at once.

A SuperLink that a thousand clients ask at once answers none of them in time, nor the server's own
app: each request that was given up is sent again. So few are under way at a time, and the others
wait at the gate, where that costs nothing. Clients that are connected, whose heartbeats must not be
late, do not wait for those that still come.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

UNDER_WAY = 4  # at once: a SuperLink is one thread of Python, and its app comes in between
COMING = 2  # of these, of clients that register
WAIT_SECONDS = 8.0
COMING_SECONDS = 20.0  # before that, of clients that register; a SuperNode gives up after 30


class BusyError(Exception):
    """There was no turn in time; the client comes again by itself, at a time that it draws."""


class Turns:
    """Limits the requests that are under way at once; to be used in the gate's event loop."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(UNDER_WAY)
        self._coming = asyncio.Semaphore(COMING)

    @property
    def all_taken(self) -> bool:
        """Whether a request has to wait for its turn."""
        return self._all.locked()

    @asynccontextmanager
    async def turn(self, *, coming: bool = False) -> AsyncIterator[None]:
        """Waits for a turn, which the block has.

        Args:
            coming: the client is not connected yet.

        Raises:
            BusyError: there was none in time.
        """
        limits = [(self._all, WAIT_SECONDS)]
        if coming:
            limits.insert(0, (self._coming, COMING_SECONDS))
        taken: list[asyncio.Semaphore] = []
        try:
            try:
                for limit, seconds in limits:
                    async with asyncio.timeout(seconds):
                        await limit.acquire()
                    taken.append(limit)
            except TimeoutError:
                raise BusyError from None
            yield
        finally:
            for limit in taken:
                limit.release()
