"""The server's app, as `run_server.py` finds it at the other end of the channel."""

import os
import sys
import threading
from contextlib import nullcontext
from multiprocessing import Pipe

import pytest

from orchestra_flwr.config import load
from orchestra_flwr.deployment.channel.json_pipe import Channel
from orchestra_flwr.deployment.processes import federation_app, federation_run
from orchestra_flwr.deployment.processes.child import Child
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.server.loop import FederationRun
from orchestra_flwr.flower.streaming_grid import EngineStoppedError
from orchestra_flwr.folder_lock import FolderInUseError, locked
from orchestra_flwr.reporting import RunFolder


def test_it_works_in_the_environment_of_the_server(tmp_path, monkeypatch):
    """Flower's programs know of no proxy; a tracker may need it to reach its own server."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("NO_PROXY", "*")
    seen = {}
    monkeypatch.setattr(federation_run, "serve", lambda *_: seen.update(os.environ))
    ours, theirs = Pipe()
    monkeypatch.setattr("sys.argv", ["app", str(os.dup(theirs.fileno()))])
    thread = threading.Thread(target=federation_app.main)
    thread.start()
    with Channel(ours) as channel:
        task = {"config": "{}", "folder": str(tmp_path), "path": []}
        channel.send({**task, "environment": {"no_proxy": "intranet", "NO_PROXY": ""}})
        thread.join(30)
    assert (seen["no_proxy"], seen["NO_PROXY"]) == ("intranet", "")


def test_the_run_folder_is_locked_until_the_app_has_ended_as_well(tmp_path):
    """However the server's own process ends: only one of them may write there."""
    ours, theirs = Pipe()
    wait = [sys.executable, "-c", f"import os; os.read({theirs.fileno()}, 1)"]
    with locked(tmp_path) as lock:
        inherited = [theirs.fileno(), lock.fileno()]
        app = Child(wait, {}, tmp_path / "log", inherited=inherited)
        theirs.close()
    with pytest.raises(FolderInUseError), locked(tmp_path):
        pass
    ours.close()
    app._process.wait(20)
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("shared", [True, False])
def test_a_server_can_keep_its_encoder(shared, tmp_path, monkeypatch):
    config = load(ServerConfig, [f"share.encoder={str(shared).lower()}"])
    given = {}
    monkeypatch.setattr(federation_run, "server_task", lambda *_: nullcontext())
    monkeypatch.setattr(federation_run, "SuperLinkGrid", lambda *_, **__: None)
    monkeypatch.setattr(FederationRun, "run", lambda run: given.update(vars(run)))
    monkeypatch.setattr(RunFolder, "resume", RunFolder)
    ours, theirs = Pipe()
    task = {"config": config.to_json(), "folder": str(tmp_path), "ca": "", "socket": "", "run": 1}
    with Channel(ours) as channel:
        federation_run.serve(Channel(theirs), {**task, "queued": False})
        assert channel.receive() == {"event": "finished", "summary": None}
    assert (given["delivery"] is not None) is shared


def test_the_end_of_a_superlink_is_said_in_plain_words():
    why = "Flower's SuperLink has not answered for 10 minutes (timed out)"
    assert federation_app._failure(EngineStoppedError(why)) == why
    assert federation_app._failure(KeyError("a")) == "KeyError: 'a'"
