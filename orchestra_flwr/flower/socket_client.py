"""Flower's clients of a local SuperLink or SuperNode, through its socket.

Checked against Flower 1.41 and 1.42: `ProtobufClient` has these attributes, and sends all with
`_client`.
"""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import httpx
from flwr.supercore.protobuf.client import ProtobufClient, ProtobufClientInterceptor
from flwr.supercore.retry import RetryInvoker

HOST = "127.0.0.1"  # stands in requests, and in certificates; nothing is looked up
TIMEOUT = 30.0  # seconds, as Flower's own
# For answers that are given once, such as replies: one that is too late is lost. A program that has
# ended closes its socket, so nobody waits for it.
LONG_TIMEOUT = 120.0
C = TypeVar("C", bound=ProtobufClient)


def connected(
    kind: type[C],
    socket: Path,
    ca: Path | None,
    interceptors: Sequence[ProtobufClientInterceptor],
    retries: RetryInvoker | None = None,
    *,
    timeout: float = TIMEOUT,
) -> C:
    """A client of some kind, at a socket.

    Its own constructor would look for a proxy in the environment, and fail for one that httpx
    cannot use.

    Args:
        ca: the certificate that the server's is checked with; None: plain text.
        timeout: seconds that an answer may take.
    """
    client = kind.__new__(kind)
    client._base_url = f"{'https' if ca else 'http'}://{HOST}"
    client._interceptors = tuple(interceptors)
    client._retry_invoker = retries
    verify = ssl.create_default_context(cafile=ca) if ca else False
    transport = httpx.HTTPTransport(uds=str(socket), verify=verify)
    client._client = httpx.Client(transport=transport, timeout=timeout)
    return client
