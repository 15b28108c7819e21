"""What the SuperLink has answered to requests that clients repeat, such as heartbeats."""

import hashlib
import time
from collections import OrderedDict

from orchestra_flwr.deployment.gate.call import Call
from orchestra_flwr.deployment.gate.upstream import UpstreamResponse

MOST = 8192  # answers, two of a client: what clients send must not fill the memory
LONGEST = 1024  # bytes of one: larger ones are messages, which are given once

Answer = tuple[UpstreamResponse, bytes]


class RecentAnswers:
    """The latest answers, each by the path, key and body of its request."""

    def __init__(self) -> None:
        self._answers: OrderedDict[bytes, tuple[float, Answer]] = OrderedDict()

    def keep(self, call: Call, body: bytes, answer: Answer) -> None:
        """Remembers an answer; one that is too long makes an earlier one forgotten."""
        request = _digest(call, body)
        self._answers.pop(request, None)
        if len(answer[1]) <= LONGEST:
            self._answers[request] = (time.monotonic(), answer)
        if len(self._answers) > MOST:
            self._answers.popitem(last=False)

    def of(self, call: Call, body: bytes, seconds: float) -> Answer | None:
        """What was answered to the same request less than `seconds` ago."""
        when, answer = self._answers.get(_digest(call, body), (0.0, None))
        return answer if answer and time.monotonic() - when < seconds else None


def _digest(call: Call, body: bytes) -> bytes:
    parts = (call.path.encode(), call.key, body)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()
