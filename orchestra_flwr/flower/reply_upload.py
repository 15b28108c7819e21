"""A reply that a SuperLink has told of: its arrays may still be on their way, or never come.

Checked against Flower 1.41: a SuperLink tells of a reply, once, before its arrays are there, and
`HttpGrid` then waits for these until no more of them have come for three minutes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

PullObject = Callable[[str], PullObjectResponse]  # by an object's id


class ReplyUpload:
    """Knows which parts of a reply have been seen at the SuperLink.

    Each is asked for until it is there, and then once more where it has not been held.

    Args:
        response: what the SuperLink said of this one reply.
    """

    def __init__(self, response: PullAppMessagesResponse) -> None:
        self.response = response
        (self._message,) = response.messages_list
        (tree,) = response.message_object_trees
        self._missing = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
        self._parts = len(self._missing)
        self._gone = False
        self.held: dict[str, PullObjectResponse] = {}

    @property
    def message_id(self) -> str:
        """Of the reply."""
        return str(self._message.metadata.message_id)

    @property
    def is_good(self) -> bool:
        """Whether it is neither an error nor withdrawn, nor given up by its client."""
        return not self._gone and not self._message.HasField("error")

    def is_over(self, pull: PullObject, *, hold: bool) -> bool:
        """Whether nothing more will come of it: all parts are there, or one never will be.

        Args:
            pull: asks the SuperLink for a part.
            hold: whether to keep a reply that is there whole, so that it travels once.
        """
        hold = hold and len(self._missing) == self._parts
        while self._missing and not self._gone:
            part = pull(self._missing[0])
            self._gone = not part.object_found
            if not part.object_available:
                break
            if hold:
                self.held[self._missing[0]] = part
            del self._missing[0]
        if self._missing:
            self.held = {}  # memory is not for what may never be whole
        return self._gone or not self._missing


@dataclass
class UploadedClient:
    """Flower's client of the SuperLink, which knows one reply already.

    It answers the next `PullMessages`, since a SuperLink tells of each reply once, and `PullObject`
    for what is held.
    """

    client: Any  # Flower's own
    upload: ReplyUpload

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        """What was answered before."""
        return self.upload.response

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        """What is held, or asked for."""
        held = self.upload.held.pop(request.object_id, None)
        found: PullObjectResponse = self.client.PullObject(request) if held is None else held
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)
