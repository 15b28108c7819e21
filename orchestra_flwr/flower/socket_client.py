"""Flower's clients of a local SuperLink or SuperNode, through its socket.

Checked against Flower 1.41: `ProtobufClient` sends all by its `_client`.
"""

import ssl
from pathlib import Path
from typing import Any

import httpx
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.runtime import RuntimeHttpClient

HOST = "127.0.0.1"  # stands in requests, and in certificates; nothing is looked up


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


def connect_all_through(socket: Path, ca: Path | None) -> None:
    """The same for every client that this process makes from now on: for the `flwr` command."""
    original = ProtobufClient.__init__

    def __init__(self: ProtobufClient, *arguments: Any, **options: Any) -> None:  # noqa: N807
        original(self, *arguments, **options)
        connect_through(self, socket, ca)

    ProtobufClient.__init__ = __init__  # type: ignore[method-assign]


def runtime_client(socket: Path, ca: Path | None, interceptors: list[Any]) -> RuntimeHttpClient:
    """A client of the Runtime API, which hands out the work of a SuperLink or a SuperNode."""
    scheme = "https" if ca else "http"
    client = RuntimeHttpClient(f"{scheme}://{HOST}", interceptors=interceptors, verify=False)
    connect_through(client, socket, ca)
    return client
