"""What the gate remembers: answers to requests that clients repeat, and messages on their way."""

import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass

from orchestra_flwr.deployment.gate.call import Call
from orchestra_flwr.deployment.gate.upstream import UpstreamResponse

MAX_ANSWERS = 8192  # answers, two per client: what clients send must not fill the memory
MAX_BYTES = 1024  # bytes of one: larger ones are messages, which are given once

Answer = tuple[UpstreamResponse, bytes]


@dataclass
class Delivery:
    """The message that a client was sent last, and what it has sent in reply."""

    request: bytes  # the body of the pull-messages that asked for it
    response: UpstreamResponse
    content: bytes  # of the response
    received: bool = False  # the client has gone on to another request
    reply_bytes: int = 0  # in push-object
    reply: bytes = b""  # the body of its last push-messages


class RecentAnswers:
    """The latest answers, each by the path, key and body of its request."""

    def __init__(self) -> None:
        self._answers: OrderedDict[bytes, tuple[float, Answer]] = OrderedDict()

    def keep(self, call: Call, body: bytes, answer: Answer) -> None:
        """Remembers an answer in place of an earlier one, unless it is too long."""
        request = _digest(call, body)
        self._answers.pop(request, None)
        if len(answer[1]) <= MAX_BYTES:
            self._answers[request] = (time.monotonic(), answer)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    def of(self, call: Call, body: bytes, seconds: float) -> Answer | None:
        """What was answered to the same request less than `seconds` ago."""
        when, answer = self._answers.get(_digest(call, body), (0.0, None))
        return answer if answer and time.monotonic() - when < seconds else None


def _digest(call: Call, body: bytes) -> bytes:
    parts = (call.path.encode(), call.key, body)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()
