"""Flower's clients at a socket, whatever the environment says of the internet."""

import httpx
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.runtime import RuntimeHttpClient

from orchestra_flwr.flower.socket_client import connected


@pytest.mark.parametrize("kind", [ControlHttpClient, RuntimeHttpClient])
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_a_proxy_is_not_asked_for_a_socket(monkeypatch, tmp_path, kind, proxy):
    """httpx has no SOCKS by itself: a client ended with an ImportError where one was set."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy)
    client = connected(kind, tmp_path / "gone", None, [])
    with pytest.raises(httpx.ConnectError, match="No such file"):
        RuntimeHttpClient.AcquireTask(client, AcquireTaskRequest())
    client.close()
