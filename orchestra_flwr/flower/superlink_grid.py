"""The server's connection to its SuperLink: reports what is sent, deletes what nobody needs.

Checked against Flower 1.41 and 1.42: `HttpGrid`, and what a SuperLink deletes when.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from flwr.app import Message
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.runtime_pb2 import PullAppMessagesRequest

from orchestra_flwr.flower.reply_upload import ReplyUpload, UnreadableReplyError
from orchestra_flwr.flower.streaming_grid import NODE_GONE, Arrival, Came, StreamingGrid, failure

if TYPE_CHECKING:  # it brings the databases of a SuperLink, which a simulation does without
    from flwr.superlink.grid.http_grid import HttpGrid

LOOK_SECONDS = 0.001  # at least between two looks, for each client that is waited for
NOTICE_SECONDS = 0.2  # at least between two looks for replies whose turn has not come
STALLED = "its reply was not uploaded whole within federation.round_timeout"


class SuperLinkGrid(StreamingGrid):
    """Deletes messages that no client will fetch, and replies that came too late.

    A SuperLink deletes the arrays of a message when its receiver says that it has them. It would
    keep those for a client that was lost before, and those of a reply that the server no longer
    waited for, in memory until the run ends: a model in each such round. A client that comes back
    for a message without arrays gets none, and waits for the next round.

    Args:
        grid: Flower's own connection.
        reply_limit: bytes that one reply's arrays may come to; None: any number.
        sent: called with the number of the node that a message was sent to.
    """

    def __init__(
        self,
        grid: "HttpGrid",
        *,
        reply_limit: int | None = None,
        sent: Callable[[int], None] = lambda node: None,
    ) -> None:
        super().__init__(grid)
        self._superlink = grid
        self._reply_limit = reply_limit
        self._sent = sent
        self._given_up: set[str] = set()
        self._noticed = -math.inf  # when :meth:`notice` looked last, by time.monotonic
        self._uploads: dict[str, ReplyUpload] = {}  # by the message: replies that are not fetched
        self._told: set[str] = set()  # those of them that are known to have come

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the wrapped grid."""
        messages = list(messages)
        ids = super().push_messages(messages)
        for message in messages:
            self._sent(message.metadata.dst_node_id)
        return ids

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        came: Came = lambda message, good: None,
    ) -> Iterator[Message]:
        """Deletes late replies of earlier messages first."""
        self.delete_late_replies()
        yield from super().send_and_receive(messages, timeout=timeout, came=came)

    def receive_first(
        self,
        messages: Iterable[Message],
        needed: Callable[[], int],
        timeout: float,
        *,
        came: Came = lambda message, good: None,
    ) -> Iterator[Arrival]:
        """Yields replies until there are enough, those that wait in the order of the messages.

        A reply counts when it has been uploaded whole; that is seen part by part, and memory is
        that of one reply. A message without a reply is given up at the end: a client that has not
        fetched it gets none, and the reply of one that works on it is deleted in the next round.

        Args:
            needed: returns how many more good replies are needed; called again after some came.
            timeout: seconds after which no reply is waited for.
            came: called for each that has come, also if it is yielded later, or never.

        Raises:
            EngineStoppedError: the engine has stopped.
        """
        self.delete_late_replies()
        began = time.monotonic()
        waiting: dict[str, tuple[int, Message]] = {}
        for place, message in enumerate(messages):
            if (message_id := self.send(message)) is None:
                yield Arrival(place, failure(NODE_GONE, message), 0.0)
            else:
                waiting[message_id] = (place, message)
        here: dict[str, float] = {}  # seconds after which a reply was there
        while waiting and needed() > 0:
            self._check_engine()
            seconds = time.monotonic() - began
            for key in self._look(waiting.keys() - here.keys()):
                here[key] = seconds
                came(waiting[key][1], self._uploads[key].is_good)
            good = sum(self._uploads[key].is_good for key in here)
            over = seconds > timeout
            if good < min(needed(), len(waiting)) and len(here) < len(waiting) and not over:
                time.sleep(max(self.poll, LOOK_SECONDS * len(waiting)))
                continue
            for key in [key for key in waiting if key in here]:
                place, message = waiting.pop(key)
                yield Arrival(place, self.fetch(key, message), here.pop(key))
            if over:
                break
        for key in waiting:
            self.give_up(key)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As :meth:`StreamingGrid.pull_messages`, of the replies that have been uploaded whole."""
        replies: list[Message] = []
        for message_id in message_ids:  # one by one: what is held is one reply
            for key in self._look([message_id], hold=True):
                replies.append(self._pulled(key))
        return replies

    def _look(self, message_ids: Iterable[str], *, hold: bool = False) -> list[str]:
        """The messages whose replies are there whole, or never will be."""
        begun = self.begun(message_ids)
        return [key for key in begun if self._uploads[key].is_over(self._pull_object, hold=hold)]

    def begun(self, message_ids: Iterable[str]) -> list[str]:
        """The messages whose replies have begun to come; one request asks for all."""
        wanted = list(message_ids)
        if unseen := [key for key in wanted if key not in self._uploads]:
            request = PullAppMessagesRequest(message_ids=unseen)
            response = self._superlink._runtime_client.PullMessages(request)
            trees = response.message_object_trees
            for reply, tree in zip(response.messages_list, trees, strict=True):
                self._uploads[reply.metadata.reply_to_message_id] = ReplyUpload(reply, tree)
        return [key for key in wanted if key in self._uploads]

    def notice(self, under_way: Mapping[str, Message], came: Came) -> None:
        """Sees replies when they come, and clients when they leave, though it is not their turn.

        A SuperLink knows of no client that it was away. Of one that is away it has an error alone,
        even if its reply lies there.
        """
        now = time.monotonic()
        if now - self._noticed <= max(NOTICE_SECONDS, LOOK_SECONDS * len(under_way)):
            return
        self._noticed = now
        due, *_ = under_way  # is taken at once when it is there
        for key in self.begun(under_way):  # to know whether it is there whole, all would be read
            if key != due and key not in self._told:
                self._told.add(key)
                came(under_way[key], self._uploads[key].is_good)

    def _pull_object(self, object_id: str) -> PullObjectResponse:
        request = PullObjectRequest(
            node=self._superlink.node, run_id=self._superlink.run.run_id, object_id=object_id
        )
        return self._superlink._runtime_client.PullObject(request)

    def _pulled(self, key: str) -> Message:
        """Fetches a reply that was seen, with its arrays, which the SuperLink then deletes."""
        upload = self._uploads.pop(key)
        self._told.discard(key)
        self.unanswered.discard(key)
        try:
            return upload.reply(self._pull_object, self._reply_limit)
        finally:
            self._delete(upload.message_id)

    def look(self, message_ids: Iterable[str]) -> dict[str, bool]:
        """The messages whose replies can be fetched, and whether each is good, or an error.

        Raises:
            EngineStoppedError: the engine has stopped.
        """
        self._check_engine()
        return {key: self._uploads[key].is_good for key in self._look(message_ids)}

    def fetch(self, key: str, message: Message) -> Message:
        """A reply that :meth:`look` names, with its arrays; a failure if it cannot be fetched."""
        try:
            reply = self._pulled(key)
        except UnreadableReplyError as error:
            return failure(str(error), message)
        if reply.has_error():
            self.give_up(key)
        return reply

    def why_silent(self, message_id: str) -> str:
        """As :meth:`StreamingGrid.why_silent`; a reply may have begun to come."""
        return STALLED if message_id in self._uploads else super().why_silent(message_id)

    def give_up(self, message_id: str) -> None:
        """Deletes the message and what came of its reply, now and later."""
        super().give_up(message_id)
        self._told.discard(message_id)
        if (upload := self._uploads.pop(message_id, None)) is not None:
            self._delete(upload.message_id)
        self._delete(message_id)
        self._given_up.add(message_id)

    def delete_late_replies(self) -> None:
        """Deletes replies to messages that were given up, without fetching their arrays."""
        if not self._given_up:
            return
        request = PullAppMessagesRequest(message_ids=self._given_up)
        for reply in self._superlink._runtime_client.PullMessages(request).messages_list:
            self._delete(reply.metadata.message_id)
            # An error of the SuperLink itself is a reply, too: it says that none will arrive.
            self._given_up.discard(reply.metadata.reply_to_message_id)

    def _delete(self, message_id: str) -> None:
        """Makes the SuperLink delete a message's arrays, by confirming that they were received."""
        self._superlink._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._superlink.node,
                run_id=self._superlink.run.run_id,
                message_object_id=message_id,
            )
        )
