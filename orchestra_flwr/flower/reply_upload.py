"""A reply that a SuperLink has told of: its arrays may still be on their way, or never come.

Checked against Flower 1.41: a SuperLink tells of a reply, once, before its arrays are there; a
message is put together as `HttpGrid` does it, which waits for these until no more of them have come
for three minutes.
"""

from collections.abc import Callable
from typing import cast

from flwr.app import Message
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from orchestra_flwr.flower.received_arrays import UnreadableReplyError, bounded_arrays

PullObject = Callable[[str], PullObjectResponse]  # by an object's id


class ReplyUpload:
    """Knows which parts of a reply have been seen at the SuperLink.

    Each is asked for until it is there, and then once more where it has not been held. The head of
    the reply, and the ids of its parts, are what the SuperLink said of it.
    """

    def __init__(self, head: MessageProto, tree: ObjectTree) -> None:
        self.message_id = head.metadata.message_id
        self._is_error = head.HasField("error")
        self._parts = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
        self._missing = [*self._parts]
        self._gone = False
        self._held: dict[str, bytes] = {}

    @property
    def is_good(self) -> bool:
        """Whether it is neither an error nor withdrawn, nor given up by its client."""
        return not self._gone and not self._is_error

    def is_over(self, pull: PullObject, *, hold: bool) -> bool:
        """Whether nothing more will come of it: all parts are there, or one never will be.

        Args:
            pull: asks the SuperLink for a part.
            hold: whether to keep a reply that is there whole, so that it travels once.
        """
        hold = hold and len(self._missing) == len(self._parts)
        while self._missing and not self._gone:
            part = pull(self._missing[0])
            self._gone = not part.object_found
            if not part.object_available:
                break
            if hold:
                self._held[self._missing[0]] = part.object_content
            del self._missing[0]
        if self._missing:
            self._held = {}  # memory is not for what may never be whole
        return self._gone or not self._missing

    def reply(self, pull: PullObject, most: int | None) -> Message:
        """The reply, made of all parts; `most` and errors as of :func:`bounded_arrays`."""
        contents, self._held = self._held, {}
        for part in self._parts:
            if part not in contents:
                found = pull(part)
                if not found.object_available:
                    raise UnreadableReplyError("its reply was given up before it was there whole")
                contents[part] = found.object_content
        with bounded_arrays(most):
            reply = cast(Message, inflate_object_from_contents(self.message_id, contents))
            reply.metadata.__dict__["_message_id"] = self.message_id
            return reply
