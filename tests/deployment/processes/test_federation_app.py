"""The server's app, as `run_server.py` finds it at the other end of the channel."""

import os
import threading

from orchestra_flwr.deployment.channel.unix_socket import ChannelListener
from orchestra_flwr.deployment.processes import federation_app


def test_it_works_in_the_environment_of_the_server(tmp_path, monkeypatch):
    """Flower's programs know of no proxy; a tracker may need it to reach its own server."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("NO_PROXY", "*")
    seen = {}
    monkeypatch.setattr(federation_app, "_serve", lambda *_: seen.update(os.environ))
    listener = ChannelListener(tmp_path)
    monkeypatch.setattr("sys.argv", ["app", listener.address])
    thread = threading.Thread(target=federation_app.main)
    thread.start()
    channel = listener.accept(30)
    listener.close()
    task = {"config": "{}", "folder": str(tmp_path), "locked": False, "path": []}
    channel.send({**task, "environment": {"no_proxy": "intranet", "NO_PROXY": ""}})
    thread.join(30)
    channel.close()
    assert (seen["no_proxy"], seen["NO_PROXY"]) == ("intranet", "")
