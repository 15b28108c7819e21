"""A server runs what is submitted to it; clients stay."""

import json
import re
import signal
import sys
from pathlib import Path

import httpx
import pytest

from orchestra_flwr.cli import submit_main
from orchestra_flwr.deployment.run_queue import RunQueue
from orchestra_flwr.deployment.watch.audit_log import check_audit

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.slow
def test_one_that_fails_and_a_killed_server_hold_up_no_run(machines):
    """And a run that has begun can be cancelled. No client is started twice."""
    machines.make_photos(a=32, b=32)
    folder = machines.folder / "runs"
    fragile = machines.folder / "photos.copy"
    fragile.mkdir()
    (fragile / "x").symlink_to(machines.photos / "a")

    queue = RunQueue(folder)
    queue.make()
    machines.keys("server", f"folder={machines.security}", "host=localhost", "client=a,b")

    def submit(*overrides):
        small = [
            override
            for override in machines.small(overrides)
            if not override.startswith("logging.")
        ]
        assert submit_main([f"queue={folder}", *small, *overrides]) == 0

    def serve():
        command = [sys.executable, "run_server.py", f"port={machines.port}", f"queue={folder}"]
        return machines.start(*command, f"security={machines.security}", "watch.port=0")

    submit("method=simclr", "federation.rounds=1")
    submit(f"data.root={fragile}")
    (fragile / "x").unlink()
    submit("federation.rounds=500")
    submit("method=byol", "federation.rounds=1")
    clients = [machines.client(name) for name in "ab"]
    server = serve()
    server.wait_for("run 0003: begins")
    assert "run 0001: done" in server.text and "run 0002: failed: data.root=" in server.text
    server.wait_for("round 2/500")
    for client in clients:
        assert client.text.count("connected to") == 1 and "the encoder is here" in client.text
    server.send(signal.SIGKILL)
    server.wait()
    again = serve()
    again.wait_for("run 0003: goes on")
    again.wait_for("resumed after round")
    assert submit_main([f"queue={folder}", "cancel=0003"]) == 0
    again.wait_for("run 0004: done")
    again.wait_for("no run waits in")
    assert [run.state for run in RunQueue(folder).runs()][2:] == ["cancelled", "done"]
    assert (Path(folder) / "0004" / "run" / "encoder.safetensors").is_file()
    for name, client in zip("ab", clients, strict=True):
        assert "byol" in client.text
        stored = machines.folder / "state" / name / "encoder"
        assert "byol" in (stored / "encoder.json").read_text()
    assert check_audit(folder / "0004" / "run")[0] > 3
    log = (folder / "0004" / "run" / "audit.jsonl").read_text().splitlines()
    registered = next(entry for entry in map(json.loads, log) if entry["event"] == "registered")
    assert registered["clients"] == ["a", "b"]
    # It is watched at one address, with a run and without one.
    watched = re.search("watched at (http://127.0.0.1:[0-9]+)/", again.text)[1]
    status = httpx.get(f"{watched}/status", trust_env=False).json()
    assert (status["state"], status["clients"]["here"]) == ("idle", 2), status
    assert check_audit(folder)[0] > 10
    again.send(signal.SIGTERM)
    assert again.wait() == 143


@pytest.mark.slow
def test_a_client_that_comes_after_the_run_gets_its_encoder(machines):
    machines.make_photos(a=32, b=32, c=32, d=32)
    machines.keys("server", f"folder={machines.security}", "host=localhost", "client=a,b,c,d")
    folder = machines.folder / "runs"
    command = [sys.executable, "run_server.py", f"port={machines.port}", f"queue={folder}"]
    server = machines.start(*command, f"security={machines.security}")
    server.wait_for("no run waits in")
    keys = ("federation.rounds=4", "training.local_epochs=20", "federation.min_clients=1")
    small = [override for override in machines.small(()) if not override.startswith("logging.")]
    clients = [machines.client(name) for name in "ab"]
    for client in clients:
        client.wait_for("connected to")
    assert submit_main([f"queue={folder}", *small, *keys, "share.wait=0"]) == 0
    clients[1].wait_for("round 1: training")
    clients[1].end()
    server.wait_for("run 0001: done")
    assert "without the encoder, because they were away: b; those that come back" in server.text
    back = machines.client("b")
    back.wait_for("the encoder is here")
    assert "run 0001: its encoder goes to b" in server.text
    machines.client("c").wait_for("the encoder is here")  # which no run has met
    assert "run 0001: its encoder goes to c" in server.text
    machines.client("d", "data.limit=7").wait_for("the encoder is here")  # too few to take part
    server.wait_for("client d is refused: too_few_images")
    summary = json.loads((folder / "0001" / "run" / "summary.json").read_text())
    assert summary["rounds"] == 4
    server.send(signal.SIGTERM)
    assert server.wait() == 143
