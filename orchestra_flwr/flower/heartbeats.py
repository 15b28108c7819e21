"""Heartbeats, by which a SuperLink or a SuperNode knows that one of its tasks is worked on.

Checked against Flower 1.41 and 1.42: `flwr.supercore.heartbeat`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.runtime import RuntimeHttpClient


@contextmanager
def heartbeats(client: RuntimeHttpClient) -> Iterator[None]:
    """Sends one every few seconds, in a thread, until the block is left.

    Flower's own sender would end this process by SIGINT once a task is not wanted any more. Here
    the task's answer is refused, which is enough. A heartbeat without an answer is sent again at
    once.
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
