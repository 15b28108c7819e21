"""The list of clients follows the folder of keys, whatever Flower's SuperLink says."""

import os
import shutil
import threading

import pytest

from orchestra_flwr.deployment.keys.client_keys import load_public_key
from orchestra_flwr.deployment.keys.server_keys import server_files
from orchestra_flwr.deployment.processes import admitted_clients as module
from orchestra_flwr.deployment.processes.admitted_clients import AdmittedClients
from orchestra_flwr.deployment.processes.child import Child
from orchestra_flwr.deployment.processes.scratch_folder import flower_folders
from orchestra_flwr.deployment.processes.superlink import superlink_command, wait_until_up
from orchestra_flwr.flower.superlink_control import SuperLinkControl, SuperLinkError


class Control:
    """Stands for a SuperLink: what is asked of it, and what it has against names."""

    def __init__(self):
        self.asked = []
        self.against = {}
        self.down = False

    def register(self, keys):
        self.asked.append([*keys])
        if self.down:
            raise SuperLinkError("the SuperLink is busy")
        return {name: self.against.get(name) for name in keys}


@pytest.fixture
def control():
    return Control()


@pytest.fixture
def said():
    return []


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def admitted(control, security, said):
    return AdmittedClients(control, security, said.append)


@pytest.fixture
def key(bundle):
    return load_public_key(bundle / "client.pub").pem


def put_back(security, name="site-1"):
    """As `keys register` does."""
    shutil.copy(security / "bundles/site-1/client.pub", security / "clients" / f"{name}.pub")


def test_a_revoked_client_comes_back_without_a_word_to_flower(
    admitted, control, security, said, keys, key
):
    admitted.update()
    assert admitted.names() == {key: "site-1"}
    assert keys("revoke", "name=site-1", f"folder={security}")[0] == 0
    admitted.update()
    assert admitted.names() == {}
    public = security / "bundles/site-1/client.pub"
    assert keys("register", f"key={public}", f"folder={security}")[0] == 0
    admitted.update()
    assert admitted.names() == {key: "site-1"}
    assert control.asked == [["site-1"]]
    assert said == ["registered: site-1", "revoked: site-1", "registered: site-1"]


def test_a_failed_registration_is_reported_once_and_tried_again(
    admitted, control, security, said, key, clock
):
    control.against["site-1"] = "The SuperLink is asleep."
    tried = []
    for second in range(0, 130):
        clock[0] = 100.0 + second
        before = len(control.asked)
        admitted.update()
        tried += [second] * (len(control.asked) - before)
        assert admitted.names() == {key: None}  # the gate asks it to come back later
    assert tried == [0, 2, 6, 14, 30, 62, 122]
    assert said == ["client site-1 cannot be registered: The SuperLink is asleep.; trying again"]
    control.against.clear()
    clock[0] += 60
    admitted.update()
    assert admitted.names() == {key: "site-1"} and said[-1] == "registered: site-1"
    clock[0] += 3600
    admitted.update()
    assert len(control.asked) == 8


def test_a_superlink_that_does_not_answer_stops_nothing(
    admitted, control, security, said, key, clock
):
    control.down = True
    with admitted.watching():
        assert said == ["clients site-1 cannot be registered: the SuperLink is busy; trying again"]
        control.down = False
        clock[0] += 3
        deadline = threading.Event()
        for _ in range(100):
            if admitted.names() == {key: "site-1"}:
                break
            deadline.wait(0.1)
    assert admitted.names() == {key: "site-1"}


def test_an_authority_that_is_being_replaced_keeps_no_client_in(
    security, said, key, keys, tmp_path
):
    """A key that was registered meanwhile ended the thread: then nobody was revoked any more."""
    ca = tmp_path / "ca.crt"
    admitted = AdmittedClients(SuperLinkControl(tmp_path / "link", ca), security, said.append)
    admitted.update()
    ca.write_bytes(b"")
    keys("server", "client=other", f"folder={security}")
    admitted.update()
    assert set(admitted.names().values()) == {None}
    assert all(f"{ca} cannot be used: " in line for line in said) and len(said) == 2
    keys("revoke", "name=site-1", f"folder={security}")
    admitted.update()
    assert key not in admitted.names()


def test_revoking_does_not_wait_for_flower(admitted, control, security, key, monkeypatch, new_line):
    """It may take seconds to answer, and others may be registered at the same time."""
    admitted.update()
    (security / "clients/site-1.pub").unlink()
    (security / "clients/site-2.pub").write_bytes(new_line())
    meanwhile = []
    register = control.register
    monkeypatch.setattr(
        control,
        "register",
        lambda new: (meanwhile.append(dict(admitted.names())), register(new))[1],
    )
    admitted.update()
    assert list(meanwhile[0].values()) == [None]  # site-2, which is to wait; site-1 is gone
    assert list(admitted.names().values()) == ["site-2"]


def test_a_key_comes_back_under_another_name_without_a_restart(
    admitted, control, security, said, key
):
    """It had to be registered as before, or the server started again."""
    admitted.update()
    (security / "clients/site-1.pub").unlink()
    put_back(security, "kitchen")
    admitted.update()
    assert admitted.names() == {key: "kitchen"} and control.asked == [["site-1"]]
    assert said == ["registered: site-1", "revoked: site-1", "registered: kitchen"]


def test_a_list_that_cannot_be_read_revokes_nobody_and_is_read_again(
    admitted, security, said, key, clock, monkeypatch
):
    admitted.update()

    def fail(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", fail)
        patch.setattr("pathlib.Path.iterdir", fail)
        admitted.update()
    assert admitted.names() == {key: "site-1"}
    assert said[-1].endswith("clients cannot be read: Permission denied; trying again")
    (security / "clients/site-1.pub").unlink()
    admitted.update()
    assert admitted.names() == {}


def test_a_key_that_cannot_be_read_for_a_moment_is_not_revoked(
    admitted, security, said, key, clock, unreadable
):
    admitted.update()
    put_back(security, "kitchen")  # the list is read anew
    with unreadable():
        admitted.update()
        assert admitted.names() == {key: "site-1"}
        assert "kitchen.pub cannot be read: Stale file handle; it counts as it was" in said[-2]
        (security / "clients/site-1.pub").unlink()  # revoked
        admitted.update()
        assert admitted.names() == {}
    clock[0] += 60
    admitted.update()
    assert admitted.names() == {key: "kitchen"}


def test_a_link_that_leads_nowhere_hides_no_change(admitted, security, key):
    """Emacs makes one beside each file that is being edited: then nobody was revoked any more."""
    (security / "clients/.#site-1.pub").symlink_to("me@host.1234:5678")
    admitted.update()
    assert admitted.names() == {key: "site-1"}
    (security / "clients/site-1.pub").unlink()
    admitted.update()
    assert admitted.names() == {}
    put_back(security)
    admitted.update()
    assert admitted.names() == {key: "site-1"}


@pytest.mark.slow
def test_a_superlink_takes_a_key_once_and_for_all(security, said, key, tmp_path):
    """Flower itself: what the admitted is built on."""
    keys = server_files(security)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    link_socket = scratch / "link"
    link = Child(superlink_command(link_socket, keys), flower_folders(scratch), tmp_path / "log")
    try:
        wait_until_up(link_socket, link)
        control = SuperLinkControl(link_socket, keys.ca)
        first = AdmittedClients(control, security, said.append)
        first.update()
        assert first.names() == {key: "site-1"}
        # A server that lost the answer asks again: Flower says no, and has it all the same.
        again = AdmittedClients(control, security, said.append)
        again.update()
        assert again.names() == {key: "site-1"}
    finally:
        link.stop()
    dead = AdmittedClients(control, security, said.append)
    dead.update()
    assert dead.names() == {key: None}
    assert said[-1].startswith(
        "clients site-1 cannot be registered: Flower's SuperLink does not answer: "
    )
