"""The server's connection to its SuperLink: what is sent is reported, what nobody needs deleted.

Checked against Flower 1.41: `HttpGrid`, and what a SuperLink deletes when.
"""

from collections.abc import Callable, Iterable, Iterator

from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.superlink.grid.http_grid import HttpGrid

from orchestra_flwr.flower.streaming_grid import StreamingGrid


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
