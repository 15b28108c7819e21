"""The list of clients follows the folder of keys, whatever Flower's command does."""

import os
import shutil
import sys
import threading

import pytest

from orchestra_flwr.deployment.keys.client_keys import load_public_key
from orchestra_flwr.deployment.keys.server_keys import server_files
from orchestra_flwr.deployment.processes import flower_command
from orchestra_flwr.deployment.processes import roster as roster_module
from orchestra_flwr.deployment.processes.child import Child
from orchestra_flwr.deployment.processes.flower_command import Flower, FlowerError
from orchestra_flwr.deployment.processes.roster import Roster
from orchestra_flwr.deployment.processes.scratch_folder import flower_folders
from orchestra_flwr.deployment.processes.superlink import superlink_command, wait_until_up

ECHO = """
import json, sys
commands = json.load(sys.stdin)
for command in commands:
    print(json.dumps({"success": False, "error-message": f"{len(commands)} commands"}))
    print("\\x00", end="")
"""


class Commands:
    """Stands for Flower's command: what is asked of it, and what it has against names."""

    def __init__(self):
        self.asked = []
        self.against = {}
        self.down = False

    def register(self, clients):
        self.asked.append([name for name, _ in clients])
        if self.down:
            raise FlowerError("the SuperLink is busy")
        return {name: self.against.get(name) for name, _ in clients}


@pytest.fixture
def commands():
    return Commands()


@pytest.fixture
def said():
    return []


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(roster_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def roster(commands, security, said):
    return Roster(commands, security, said.append)


@pytest.fixture
def key(bundle):
    return load_public_key(bundle / "client.pub").pem


def put_back(security, name="site-1"):
    """As `keys register` does."""
    shutil.copy(security / "bundles/site-1/client.pub", security / "clients" / f"{name}.pub")


def test_a_revoked_client_comes_back_without_a_word_to_flower(
    roster, commands, security, said, keys, key
):
    roster.update()
    assert roster.names() == {key: "site-1"}
    assert keys("revoke", "name=site-1", f"folder={security}")[0] == 0
    roster.update()
    assert roster.names() == {}
    public = security / "bundles/site-1/client.pub"
    assert keys("register", f"key={public}", f"folder={security}")[0] == 0
    roster.update()
    assert roster.names() == {key: "site-1"}
    assert commands.asked == [["site-1"]]
    assert said == ["registered: site-1", "revoked: site-1", "registered: site-1"]


def test_a_failed_registration_is_reported_once_and_tried_again(
    roster, commands, security, said, key, clock
):
    commands.against["site-1"] = "The SuperLink is asleep."
    tried = []
    for second in range(0, 130):
        clock[0] = 100.0 + second
        before = len(commands.asked)
        roster.update()
        tried += [second] * (len(commands.asked) - before)
        assert roster.names() == {key: None}  # the gate asks it to come back later
    assert tried == [0, 2, 6, 14, 30, 62, 122]
    assert said == ["client site-1 cannot be registered: The SuperLink is asleep.; trying again"]
    commands.against.clear()
    clock[0] += 60
    roster.update()
    assert roster.names() == {key: "site-1"} and said[-1] == "registered: site-1"
    clock[0] += 3600
    roster.update()
    assert len(commands.asked) == 8


def test_a_command_that_fails_as_a_whole_stops_nothing(
    roster, commands, security, said, key, clock
):
    commands.down = True
    with roster.watching():
        assert said == ["clients site-1 cannot be registered: the SuperLink is busy; trying again"]
        commands.down = False
        clock[0] += 3
        deadline = threading.Event()
        for _ in range(100):
            if roster.names() == {key: "site-1"}:
                break
            deadline.wait(0.1)
    assert roster.names() == {key: "site-1"}


def test_revoking_does_not_wait_for_flower(roster, commands, security, key, monkeypatch, new_line):
    """Its command takes seconds, and others may be registered at the same time."""
    roster.update()
    (security / "clients/site-1.pub").unlink()
    (security / "clients/site-2.pub").write_bytes(new_line())
    meanwhile = []
    register = commands.register
    monkeypatch.setattr(
        commands, "register", lambda new: (meanwhile.append(dict(roster.names())), register(new))[1]
    )
    roster.update()
    assert list(meanwhile[0].values()) == [None]  # site-2, which is to wait; site-1 is gone
    assert list(roster.names().values()) == ["site-2"]


def test_a_key_comes_back_under_another_name_without_a_restart(
    roster, commands, security, said, key
):
    """It had to be registered as before, or the server started again."""
    roster.update()
    (security / "clients/site-1.pub").unlink()
    put_back(security, "kitchen")
    roster.update()
    assert roster.names() == {key: "kitchen"} and commands.asked == [["site-1"]]
    assert said == ["registered: site-1", "revoked: site-1", "registered: kitchen"]


def test_a_list_that_cannot_be_read_revokes_nobody_and_is_read_again(
    roster, security, said, key, clock, monkeypatch
):
    roster.update()

    def fail(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", fail)
        patch.setattr("pathlib.Path.iterdir", fail)
        roster.update()
    assert roster.names() == {key: "site-1"}
    assert said[-1].endswith("clients cannot be read: Permission denied; trying again")
    (security / "clients/site-1.pub").unlink()
    roster.update()
    assert roster.names() == {}


@pytest.mark.slow
def test_a_superlink_takes_a_key_once_and_for_all(security, said, key, tmp_path):
    """Flower itself: what the roster is built on."""
    keys = server_files(security)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    link_socket = scratch / "link"
    link = Child(superlink_command(link_socket, keys), flower_folders(scratch), tmp_path / "log")
    try:
        wait_until_up(link_socket, link)
        flower = Flower(scratch, link_socket, keys.ca)
        first = Roster(flower, security, said.append)
        first.update()
        assert first.names() == {key: "site-1"}
        # A server that lost the answer asks again: Flower says no, and has it all the same.
        again = Roster(flower, security, said.append)
        again.update()
        assert again.names() == {key: "site-1"}
    finally:
        link.stop()
    dead = Roster(flower, security, said.append)
    dead.update()
    assert dead.names() == {key: None}
    assert said[-1].startswith("client site-1 cannot be registered: ")


def test_thousands_of_clients_are_registered_by_one_command(tmp_path, monkeypatch):
    """What an argument of a process cannot hold: 128 KiB."""
    echo = [sys.executable, "-c", ECHO]
    monkeypatch.setattr(flower_command, "python_command", lambda *_: echo)
    clients = [(f"client-{n}", tmp_path / "a folder of keys" / f"{n}.pub") for n in range(3000)]
    assert Flower(tmp_path, tmp_path / "link", None).register(clients) == {
        name: f"{len(clients)} commands" for name, _ in clients
    }


def test_a_command_that_cannot_be_started_is_tried_again(tmp_path, monkeypatch):
    def no_memory(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(flower_command.subprocess, "run", no_memory)
    with pytest.raises(FlowerError, match="flwr cannot be run: .*Cannot allocate memory"):
        Flower(tmp_path, tmp_path / "link", None).register([("a", tmp_path / "a.pub")])
