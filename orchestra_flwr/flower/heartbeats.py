"""Says to a SuperLink or a SuperNode that somebody works on a task of its.

Checked against Flower 1.41: `flwr.supercore.heartbeat`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.runtime import RuntimeHttpClient


@contextmanager
def heartbeats(client: RuntimeHttpClient) -> Iterator[None]:
    """Every few seconds, in a thread, until the block is left.

    Flower's own would end this process by SIGINT where a task is not wanted any more. Here its
    answer is refused then, which is enough. One that is not answered is sent again at once.
    """

    def beat() -> bool:
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.TransportError:
            return False
        except httpx.HTTPStatusError:
            pass
        return True

    sender = HeartbeatSender(beat)
    sender.start()
    try:
        yield
    finally:
        sender.stop()
