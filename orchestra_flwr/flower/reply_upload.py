"""A reply that a SuperLink has announced: its arrays may still be on their way, or never come.

Checked against Flower 1.41 and 1.42: a SuperLink announces a reply once, before its arrays are
there; a message is put together as `HttpGrid` does it, which waits for these until none has come
for three minutes.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from flwr.app import Array, Message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from google.protobuf.message import DecodeError

PullObject = Callable[[str], PullObjectResponse]  # by an object's id
# What Flower raises where a client's bytes are not what they should be.
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    DecodeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class UnreadableReplyError(ValueError):
    """A client sent something from which no message can be made."""


@contextmanager
def readable() -> Iterator[None]:
    """Turns what Flower raises in the block about a client's bytes into an UnreadableReplyError."""
    try:
        yield
    except UNREADABLE as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UnreadableReplyError(f"it cannot be read ({why})") from error


class ReplyUpload:
    """Knows which parts of a reply have been seen at the SuperLink.

    Each is asked for until it is there, and then once more if it has not been held. The head of the
    reply and the ids of its parts are those that the SuperLink announced.
    """

    def __init__(self, head: MessageProto, tree: ObjectTree) -> None:
        self.message_id = head.metadata.message_id
        self._is_error = head.HasField("error")
        self._parts = list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree)))
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
        """The reply, made of all parts; as :func:`put_together`."""
        contents, self._held = self._held, {}
        for part in self._parts:
            if part not in contents:
                response = pull(part)
                if not response.object_available:
                    raise UnreadableReplyError("its reply was given up before it was there whole")
                contents[part] = response.object_content
        return put_together(self.message_id, contents, most)


def put_together(message_id: str, contents: dict[str, bytes], most: int | None) -> Message:
    """Puts a message together from its parts by their ids, and lets these go.

    Args:
        most: bytes of all arrays; None: any number.

    Raises:
        UnreadableReplyError: they are more, or the reply cannot be read for another reason.
    """
    with readable():
        if most is not None and bytes_of_arrays(contents) > most:
            raise ValueError(f"its arrays have more than {most} bytes")
        reply = inflate_object_from_contents(message_id, contents)
        if not isinstance(reply, Message):
            raise TypeError("it is no message")
    reply.metadata.__dict__["_message_id"] = message_id
    return reply


def bytes_of_arrays(contents: Mapping[str, bytes]) -> int:
    """How many bytes the arrays of a message come to when they are put together.

    An array arrives as chunks and a list of the order in which they are joined. A chunk may stand
    in that list as often as the sender likes, so a small reply could fill the server's memory. An
    array in the place of a chunk, whose own list would multiply that, is refused.

    Raises:
        one of UNREADABLE.
    """
    heads = {
        key: get_object_head_values_from_object_content(content)
        for key, content in contents.items()
    }
    chunks = {
        key: len(contents[key]) - contents[key].find(HEAD_BODY_DIVIDER) - 1
        for key, (kind, *_) in heads.items()
        if kind == ArrayChunk.__qualname__
    }
    total = 0
    for key, (kind, ids, _) in heads.items():
        if kind == Array.__qualname__:
            listed = json.loads(get_object_body(contents[key], Array))["arraychunk_ids"]
            total += sum(chunks[ids[place]] for place in listed)
    return total
