"""Long polling: a client that asks for messages waits at the gate until there is one.

A SuperNode that gets no message sleeps for 3 seconds before it asks again. So the gate does not
answer at once that there is none: it asks the SuperLink again when a message was sent to that node
(:meth:`Waiting.wake`), and every few seconds in case that was not reported. With very many clients
it asks less often, so that these requests are not what keeps the SuperLink busy.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator

from starlette.requests import ClientDisconnect
from starlette.types import Message

WAIT_SECONDS = 20.0  # at most; a SuperNode gives up an answer after 30
POLL_SECONDS = 3.0  # as often as the SuperNode would ask by itself
POLLS_A_SECOND = 5  # of all clients together
MANY = 100  # so many clients that wait keep a SuperLink busy by their polls alone
MAX_MISSED = 8192  # nodes; one that was forgotten gets its message a minute later at most
GAP_SECONDS = 5.0  # after a request, within which a client that stays has sent the next


class Waiting:
    """The requests that wait for a message; to be used in the gate's event loop."""

    def __init__(self) -> None:
        self._waiters: dict[int, Waiter] = {}
        # Nodes that were sent a message while they did not wait, the latest last. Many have gone.
        self._missed: dict[int, None] = {}
        self._left: dict[int, tuple[bytes, float]] = {}  # node -> key, and when its wait was over
        self._closed = False

    def keys(self) -> list[bytes]:
        """The public key of each client that waits, or did a moment ago; from any thread."""
        since = time.monotonic() - GAP_SECONDS
        left = {node: key for node, (key, when) in list(self._left.items()) if when > since}
        return [
            *(left | {node: waiter.key for node, waiter in list(self._waiters.items())}).values()
        ]

    def wake(self, node: int) -> None:
        """Makes the request of a node ask for its message now."""
        if node in self._waiters:
            self._waiters[node].wake()
        else:
            self._missed[node] = None
            if len(self._missed) > MAX_MISSED:
                del self._missed[next(iter(self._missed))]

    @property
    def are_many(self) -> bool:
        """Whether the SuperLink is to be spared."""
        return len(self._waiters) >= MANY

    def missed(self, node: int) -> bool:
        """Whether the node was sent a message while it did not wait."""
        return node in self._missed

    def close(self) -> None:
        """Ends all waits: every request is answered."""
        self._closed = True
        for waiter in self._waiters.values():
            waiter.end()

    def _pause(self) -> float:
        """Seconds between two polls of a client."""
        return max(POLL_SECONDS, len(self._waiters) / POLLS_A_SECOND)

    @contextlib.contextmanager
    def waiter(
        self, node: int, receive: Callable[[], Awaitable[Message]], seconds: float, key: bytes = b""
    ) -> Iterator["Waiter"]:
        """Lets a request of this node wait; an earlier one of the same node ends.

        A client that was cut off comes back while its old request still waits, which must not take
        the message. The request waits for `seconds` or `WAIT_SECONDS`, whichever are fewer.

        Args:
            node: the number that the SuperLink gave it.
            receive: of ASGI; the whole request was received.
            key: the client's public one; empty in plain text.
        """
        if (old := self._waiters.get(node)) is not None:
            old.end()
        waiter = self._waiters[node] = Waiter(receive, min(seconds, WAIT_SECONDS), key, self._pause)
        if self._closed:
            waiter.end()
        if old is not None or node in self._missed:  # one may have come since it has asked
            self._missed.pop(node, None)
            waiter.wake()
        try:
            yield waiter
        finally:
            waiter.leave()
            if self._waiters.get(node) is waiter:
                del self._waiters[node]
            now = time.monotonic()
            for gone in [n for n, (_, when) in self._left.items() if now - when > GAP_SECONDS]:
                del self._left[gone]
            self._left[node] = (key, now)


class Waiter:
    """One request that waits."""

    def __init__(
        self,
        receive: Callable[[], Awaitable[Message]],
        seconds: float,
        key: bytes,
        pause: Callable[[], float],
    ) -> None:
        self.key = key
        self._pause = pause
        self._end = asyncio.get_running_loop().time() + seconds
        self._awake = asyncio.Event()
        self._gone = asyncio.ensure_future(receive())  # nothing comes any more but the end
        self._gone.add_done_callback(lambda _: self.wake())

    async def poll(self) -> bool:
        """Waits until it is time to ask for a message; False when the wait is over.

        Raises:
            ClientDisconnect: the client is gone, and must not be sent one.
        """
        now = asyncio.get_running_loop().time
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(now() + self._pause(), self._end)):
                await self._awake.wait()
        self._awake.clear()
        if self._gone.done():
            raise ClientDisconnect
        return now() < self._end

    def wake(self) -> None:
        """Ends the wait of `poll`."""
        self._awake.set()

    def end(self) -> None:
        """Ends the wait for good."""
        self._end = 0.0
        self.wake()

    def leave(self) -> None:
        """Stops watching for the client's end: the request was answered."""
        self._gone.cancel()
