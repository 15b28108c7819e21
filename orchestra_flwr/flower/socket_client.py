"""Flower's clients of a local SuperLink or SuperNode, through its socket.

Checked against Flower 1.41: `ProtobufClient` sends all by its `_client`.
"""

import ssl
from pathlib import Path
from typing import Any, TypeVar

import httpx
from flwr.supercore.protobuf.client import ProtobufClient

HOST = "127.0.0.1"  # stands in requests, and in certificates; nothing is looked up
C = TypeVar("C", bound=ProtobufClient)


def connect_through(client: ProtobufClient, socket: Path, ca: Path | None) -> None:
    """Lets one of Flower's clients connect at a socket.

    Args:
        client: one that has sent nothing yet.
        ca: the certificate that the server's is checked with; None: plain text.
    """
    timeout = client._client.timeout
    client._client.close()
    verify = ssl.create_default_context(cafile=ca) if ca else False
    transport = httpx.HTTPTransport(uds=str(socket), verify=verify)
    client._client = httpx.Client(transport=transport, timeout=timeout)


def connected(kind: type[C], socket: Path, ca: Path | None, interceptors: list[Any]) -> C:
    """A client of some kind, at a socket; `ca` as of :func:`connect_through`."""
    scheme = "https" if ca else "http"
    client = kind(f"{scheme}://{HOST}", interceptors=interceptors, verify=False)
    connect_through(client, socket, ca)
    return client
