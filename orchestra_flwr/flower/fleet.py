"""What server, gate and client have to know about Flower's Fleet API.

Checked against Flower 1.41 and 1.42: its clients' messages, how old a signature may be, that a
reply is refused if it is dated after its message has expired, and `ErrorCode`.
"""

from flwr.common.constant import ErrorCode
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from google.protobuf.message import DecodeError

# A SuperLink accepts what was signed less than so many seconds ago, or ahead of its own clock.
MAX_AGE, MAX_AHEAD = 305.0, 5.0
# A client signs by the server's time, but dates its replies by its own, which may differ so much.
MAX_CLOCK_DIFFERENCE = 3600.0
NEVER = 1e9  # seconds, thirty years
# What the errors of a SuperLink or SuperNode mean: their own texts speak of a database.
MEANINGS = {
    ErrorCode.MESSAGE_UNAVAILABLE: "the message to it is no longer kept: it took too long",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its reply came too late",
    ErrorCode.NODE_UNAVAILABLE: "it was ended, or nothing was heard of it for a while",
    ErrorCode.CLIENT_APP_CRASHED: "its process for the work ended before the reply was there",
}


def time_to_live(seconds: float | None) -> float:
    """Seconds after which a message expires, if its reply is waited for so many seconds.

    A reply in time may wait as long again while those before it are fetched. None: as long as it
    takes, and no message expires.
    """
    return NEVER if seconds is None else 2 * seconds + 60 + MAX_CLOCK_DIFFERENCE


def withdrawal(push_messages: bytes) -> bytes:
    """The body of `confirm-message-received` that takes back the reply of a `push-messages`.

    The SuperLink then deletes the reply's objects, and the server, which waits for those still
    missing, gets an error reply at once. Without the withdrawal that comes 180 s after the last
    object.

    Args:
        push_messages: the body of the client's request, which SuperLink has accepted.
    """
    request = PushMessagesRequest.FromString(push_messages)
    reply = request.messages_list[0].metadata
    withdrawn = ConfirmMessageReceivedRequest(
        node=request.node, run_id=reply.run_id, message_object_id=reply.message_id
    )
    return bytes(withdrawn.SerializeToString())


def is_own_reply(push_messages: bytes) -> bool:
    """Whether the body of a `push-messages` holds one reply, of the very node that sends it.

    A SuperLink takes any message: also one to the node itself, to another node or to the server's
    app, as if the server had sent it.
    """
    try:
        request = PushMessagesRequest.FromString(push_messages)
        (message,) = request.messages_list
    except (DecodeError, ValueError):  # not readable, or several
        return False
    metadata = message.metadata
    return bool(metadata.reply_to_message_id) and metadata.src_node_id == request.node.node_id


def node_of(pull_messages: bytes) -> int | None:
    """The number of the node that asks for messages; None where the body names none."""
    try:
        return PullMessagesRequest.FromString(pull_messages).node.node_id or None
    except DecodeError:
        return None
