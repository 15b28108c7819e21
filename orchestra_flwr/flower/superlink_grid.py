"""The server's connection to its SuperLink: what is sent is reported, what nobody needs deleted.

Checked against Flower 1.41: `HttpGrid`, and what a SuperLink deletes when.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.superlink.grid.http_grid import HttpGrid

from orchestra_flwr.flower.received_arrays import UnreadableReplyError
from orchestra_flwr.flower.streaming_grid import NODE_GONE, Arrival, StreamingGrid, failure

LOOK_SECONDS = 0.001  # at least between two looks, for each client that is waited for
TOO_LARGE = "its reply cannot be fetched: it is too large"


class SuperLinkGrid(StreamingGrid):
    """Deletes messages that no client will fetch, and replies that came too late.

    A SuperLink deletes the arrays of a message when its receiver says that it has them. Those for a
    client that was lost before, and those of a reply that the server no longer waited for, it would
    keep in memory until the run ends: a model in each such round. A client that comes back for a
    message without arrays gets none, and waits for the next round.

    Args:
        grid: Flower's own connection.
        reply_limit: as for :class:`StreamingGrid`.
        sent: called with the number of the node that a message was sent to.
    """

    def __init__(
        self,
        grid: HttpGrid,
        *,
        reply_limit: int | None = None,
        sent: Callable[[int], None] = lambda node: None,
    ) -> None:
        super().__init__(grid, reply_limit=reply_limit)
        self._superlink = grid
        self._sent = sent
        self._given_up: set[str] = set()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the wrapped grid."""
        messages = list(messages)
        ids = super().push_messages(messages)
        for message in messages:
            self._sent(message.metadata.dst_node_id)
        return ids

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """As :meth:`StreamingGrid.send_and_receive`."""
        self._delete_late_replies()
        yield from super().send_and_receive(messages, timeout=timeout)

    def receive_first(
        self, messages: Iterable[Message], needed: Callable[[], int], timeout: float
    ) -> Iterator[Arrival]:
        """Yields replies until there are enough, those that wait in the order of the messages.

        Who has answered is seen without fetching arrays, so memory is that of one reply. A message
        without a reply is given up at the end: a client that has not fetched it gets none, and the
        reply of one that works on it is deleted in the next round.

        Args:
            messages: of a stage.
            needed: how many more good replies are; asked again when those that came were yielded.
            timeout: seconds after which nobody is waited for.

        Raises:
            EngineStoppedError: the engine has stopped.
        """
        self._delete_late_replies()
        began = time.monotonic()
        waiting: dict[str, tuple[int, Message]] = {}
        for place, message in enumerate(messages):
            message_id = next(iter(self.push_messages([message])), None)
            if not message_id:
                yield Arrival(place, failure(NODE_GONE, message), 0.0)
            else:
                waiting[message_id] = (place, message)
        came: dict[str, tuple[PullAppMessagesResponse, float]] = {}
        while waiting and needed() > 0:
            self._check_engine()
            seconds = time.monotonic() - began
            if unanswered := waiting.keys() - came.keys():
                for key, response in self._look(unanswered):
                    came[key] = (response, seconds)
            good = sum(not found.messages_list[0].HasField("error") for found, _ in came.values())
            over = seconds > timeout
            if good < min(needed(), len(waiting)) and len(came) < len(waiting) and not over:
                time.sleep(max(self._poll, LOOK_SECONDS * len(waiting)))
                continue
            for key in [key for key in waiting if key in came]:
                place, message = waiting.pop(key)
                response, seconds = came.pop(key)
                yield Arrival(place, self._fetched(key, response, message), seconds)
            if over:
                break
        for key in waiting:
            self.give_up(key)

    def _look(self, message_ids: Iterable[str]) -> Iterator[tuple[str, PullAppMessagesResponse]]:
        """The replies that have come, without arrays, each by the message that it answers."""
        request = PullAppMessagesRequest(message_ids=message_ids)
        found = self._superlink._runtime_client.PullMessages(request)
        trees = found.message_object_trees
        for reply, tree in zip(found.messages_list, trees, strict=True):
            one = PullAppMessagesResponse(messages_list=[reply], message_object_trees=[tree])
            yield reply.metadata.reply_to_message_id, one

    def _fetched(self, key: str, response: PullAppMessagesResponse, message: Message) -> Message:
        """A reply that was seen, with its arrays: Flower's steps after it has been told of it."""
        client = self._superlink._client
        self._superlink._client = _Seen(client, response)  # type: ignore[assignment]
        try:
            reply = next(iter(self.pull_messages([key])), failure(TOO_LARGE, message))
        except UnreadableReplyError as error:
            return failure(str(error), message)
        finally:
            self._superlink._client = client
        if reply.has_error():
            self.give_up(key)
        return reply

    def give_up(self, message_id: str) -> None:
        """As :meth:`StreamingGrid.give_up`."""
        super().give_up(message_id)
        self._delete(message_id)
        self._given_up.add(message_id)

    def _delete_late_replies(self) -> None:
        """Asks for the replies, but not for their arrays."""
        if not self._given_up:
            return
        request = PullAppMessagesRequest(message_ids=self._given_up)
        for reply in self._superlink._runtime_client.PullMessages(request).messages_list:
            self._delete(reply.metadata.message_id)
            # An error of the SuperLink itself is a reply, too: that none can arrive any more.
            self._given_up.discard(reply.metadata.reply_to_message_id)

    def _delete(self, message_id: str) -> None:
        """The SuperLink deletes the arrays of what the server says to have received."""
        self._superlink._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._superlink.node, run_id=self.run.run_id, message_object_id=message_id
            )
        )


class _Seen:
    """Flower's client of the SuperLink, which knows the answer to the next `PullMessages`."""

    def __init__(self, client: Any, response: PullAppMessagesResponse) -> None:
        self._client = client
        self._response = response

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        """What was answered when it was asked before: a SuperLink tells of each reply once."""
        return self._response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)
