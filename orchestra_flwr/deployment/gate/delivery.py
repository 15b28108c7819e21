"""What the gate knows of a message on its way to a client, and of the reply to it."""

from dataclasses import dataclass

from orchestra_flwr.deployment.gate.upstream import UpstreamResponse


@dataclass
class Delivery:
    """The message that a client was sent last, and what it has sent in reply."""

    request: bytes  # the body of the pull-messages that asked for it
    response: UpstreamResponse
    content: bytes  # of the response
    received: bool = False  # the client has gone on to another request
    reply_bytes: int = 0  # in push-object
    reply: bytes = b""  # the body of its last push-messages
