"""What is asked of a real SuperLink, and what is said where it refuses or is not there."""

import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestra_flwr.deployment.keys.client_keys import load_public_key
from orchestra_flwr.deployment.keys.command_line import main
from orchestra_flwr.deployment.keys.server_keys import server_files
from orchestra_flwr.deployment.processes.child import Child
from orchestra_flwr.deployment.processes.scratch_folder import flower_folders
from orchestra_flwr.deployment.processes.superlink import superlink_command, wait_until_up
from orchestra_flwr.flower import superlink_control
from orchestra_flwr.flower.deployed_app import PROJECT
from orchestra_flwr.flower.socket_client import LONG_TIMEOUT
from orchestra_flwr.flower.superlink_control import SuperLinkControl, SuperLinkError

APP = {"pyproject.toml": PROJECT.encode()}


@pytest.fixture
def scratch():
    folder = Path(tempfile.mkdtemp(prefix="orch"))  # short: sockets
    yield folder
    shutil.rmtree(folder)


def test_a_superlink_that_is_busy_has_minutes_to_begin_a_run(monkeypatch, tmp_path):
    """An answer that comes too late is lost, and the run with it."""
    timeouts = []

    def connected(*_, timeout):
        timeouts.append(timeout)
        began = SimpleNamespace(run_id=7)
        return SimpleNamespace(StartRun=lambda _: began, close=lambda: None)

    monkeypatch.setattr(superlink_control, "connected", connected)
    assert SuperLinkControl(tmp_path / "link", None).start_run(APP) == 7
    assert timeouts == [LONG_TIMEOUT]


def test_a_superlink_begins_and_ends_runs_and_takes_a_key_once(scratch, tmp_path):
    security, socket = tmp_path / "security", scratch / "link"
    assert main(["server", "host=127.0.0.1", "client=site-1", f"folder={security}"]) == 0
    keys = server_files(security)
    link = Child(superlink_command(socket, keys), flower_folders(scratch), tmp_path / "log")
    try:
        wait_until_up(socket, link)
        control = SuperLinkControl(socket, keys.ca)
        first, second = control.start_run(APP), control.start_run(APP)
        assert first != second
        control.stop_run(first)
        control.forget_messages(first)
        with pytest.raises(SuperLinkError, match="^Flower's SuperLink refuses: Run .*finished"):
            control.stop_run(first)
        key = load_public_key(security / "clients/site-1.pub").pem
        # It has the key after a first answer that was lost, too; the others are taken all the same.
        for name in ("site-1", "again"):
            against = control.register({"damaged": b"no key", name: key})
            assert against == {"damaged": "The provided public key is not valid.", name: None}
        with pytest.raises(SuperLinkError, match="does not answer"):
            SuperLinkControl(socket, None).start_run(APP)  # plain text, to TLS
    finally:
        link.stop()
    with pytest.raises(SuperLinkError, match="^Flower's SuperLink does not answer: .*Errno"):
        control.register({"site-1": key})
