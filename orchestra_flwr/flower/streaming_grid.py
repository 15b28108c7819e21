"""Grids whose replies arrive one by one, in the order of the messages.

Flower's own grids collect all replies of a round before they return them. Here the server never
holds more than a window of them, and aggregates in a fixed order, not in that of the answers.

Checked against Flower 1.41 and 1.42: the methods of `Grid`, and that a message to a node that is
gone has an empty id, or none.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import NoReturn

from flwr.app import Error, Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from orchestra_flwr.flower.reply_upload import UnreadableReplyError, readable

TIMEOUT_CODE = 100
POLL_SECONDS = 0.05
# Takes a message whose reply has come, perhaps long before its turn, and whether it is no error
Came = Callable[[Message, bool], None]
NODE_GONE = "the message could not be sent: the node is gone"


@dataclass(frozen=True)
class Arrival:
    """A reply that came."""

    place: int  # of its message among those of the stage, from 0
    reply: Message  # of the client, or an error
    seconds: float  # after the stage began


class EngineStoppedError(RuntimeError):
    """The engine behind the grid has stopped."""


class OneRunGrid(Grid):
    """A grid of one run, without what Flower's grids offer for several, or for earlier apps."""

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} has one run, and sends what it is given")

    set_run = create_message = _refuse
    run = property(_refuse)


@dataclass
class StreamingGrid(OneRunGrid):
    """Wraps a grid of Flower so that :meth:`send_and_receive` is a lazy, ordered iterator.

    Attributes:
        unanswered: ids of the messages that have got no reply so far and were not given up.
    """

    grid: Grid  # of a simulation or of a SuperLink
    window: int | None = None  # at most so many messages are under way; None: all at once
    # Why the engine behind the grid has stopped, None while it runs; asked before each message,
    # while waiting, and before an error counts as the client's own.
    stopped: Callable[[], str | None] = lambda: None
    _: KW_ONLY
    prepare: Callable[[Message], None] = lambda message: None  # may change each before it is sent
    # Whether the client of a reply is to be asked once more, while no other works.
    retry: Callable[[Message], bool] = lambda reply: False
    poll: float = POLL_SECONDS  # between two looks for a reply
    unanswered: set[str] = field(default_factory=set, init=False)

    def get_node_ids(self) -> Iterable[int]:
        """As the wrapped grid."""
        return self.grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """As the wrapped grid."""
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the wrapped grid."""
        ids = list(self.grid.push_messages(messages))
        self.unanswered.update(filter(None, ids))
        return ids

    def send(self, message: Message) -> str | None:
        """Sends one message and returns its id; None: its node is gone."""
        return next(iter(self.push_messages([message])), None) or None

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the wrapped grid.

        Raises:
            UnreadableReplyError: a client sent what is no message; what the others sent may be
                lost with it.
        """
        with readable():
            replies = list(self.grid.pull_messages(message_ids))
        self.unanswered.difference_update(r.metadata.reply_to_message_id for r in replies)
        return replies

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        came: Came = lambda message, good: None,
    ) -> Iterator[Message]:
        """Yields one reply per message, in the order of the messages.

        A message without a reply when `timeout` seconds have passed since the first was sent
        gets an error reply. Only the reply that is due is pulled; later ones wait in the grid.

        Args:
            came: called for later ones when they have begun to come, by grids that look for them.

        Raises:
            EngineStoppedError: the engine has stopped.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = iter(messages)
        under_way: deque[tuple[str | None, Message]] = deque()
        while True:
            while self.window is None or len(under_way) < self.window:
                message = next(waiting, None)
                if message is None:
                    break
                self._check_engine()
                self.prepare(message)
                under_way.append((self.send(message), message))
            if not under_way:
                return
            others = {key: message for key, message in under_way if key}
            notice = partial(self.notice, others, came)
            reply = self._receive(*under_way[0], deadline, notice)
            _, message = under_way.popleft()
            if not self.retry(reply):
                yield reply
                continue
            # The others under way end first; their replies wait, at most a window of them.
            ended = deque([(message, reply)])
            ended += [
                (message, self._receive(key, message, deadline)) for key, message in under_way
            ]
            under_way.clear()
            while ended:
                message, reply = ended.popleft()
                yield self._asked_again(message, reply, deadline)

    def _asked_again(self, message: Message, reply: Message, deadline: float | None) -> Message:
        """The final reply: the first one, or a second one where that is wanted."""
        if not self.retry(reply) or (deadline is not None and time.monotonic() > deadline):
            return reply
        metadata = message.metadata
        again = Message(
            message.content,
            metadata.dst_node_id,
            metadata.message_type,
            ttl=metadata.ttl,
            group_id=metadata.group_id,
        )
        return self._receive(self.send(again), again, deadline)

    def _receive(
        self,
        message_id: str | None,
        message: Message,
        deadline: float | None,
        notice: Callable[[], None] = lambda: None,
    ) -> Message:
        if message_id is None:
            return failure(NODE_GONE, message)
        while True:
            notice()
            try:
                replies = self.pull_messages([message_id])
            except UnreadableReplyError as error:
                return failure(str(error), message)
            for reply in replies:
                if reply.has_error():  # of the engine rather than of the client?
                    self._check_engine()
                    self.give_up(message_id)
                return reply
            self._check_engine()
            if deadline is not None and time.monotonic() > deadline:
                why = self.why_silent(message_id)
                self.give_up(message_id)
                return failure(why, message)
            time.sleep(self.poll)

    def notice(self, under_way: Mapping[str, Message], came: Came) -> None:
        """Called again and again, while one of these messages is waited for."""

    def why_silent(self, message_id: str) -> str:
        """Says why a message was not answered in time."""
        return "no reply within federation.round_timeout"

    def give_up(self, message_id: str) -> None:
        """Called for a message whose client has not answered it, or only with an error."""
        self.unanswered.discard(message_id)

    def _check_engine(self) -> None:
        if (why := self.stopped()) is not None:
            raise EngineStoppedError(why)


def failure(reason: str, message: Message) -> Message:
    """An error in place of the reply that a message did not get."""
    return Message(Error(code=TIMEOUT_CODE, reason=reason), reply_to=message)
