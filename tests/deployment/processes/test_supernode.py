"""The SuperNode of a client: what becomes of it when it stays but does nothing any more."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestra_flwr.deployment.gate import fixed_answers
from orchestra_flwr.deployment.keys.client_keys import ClientFiles
from orchestra_flwr.deployment.processes import supernode
from orchestra_flwr.deployment.processes.reachability import UnreachableError, check_server
from orchestra_flwr.deployment.processes.supernode import Supernode

# What Flower 1.41 writes, in a program that stays as its own does.
DEAF = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print("\\x1b[92mINFO \\x1b[0m:      SuperNode ID: 17", flush=True)
time.sleep(0.5)
print("\\x1b[91mERROR \\x1b[0m:     SSL/TLS handshake error detected.", flush=True)
time.sleep(600)
"""


# Its key is revoked, or the server was started again: it ends, and its own process is the last.
ENDING = """
import subprocess, sys, time
print("SuperNode ID: 17", flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
time.sleep(0.3)
print("\\x1b[92mINFO \\x1b[0m:      SuperNode terminated gracefully.", flush=True)
time.sleep(0.3)
child.kill()
time.sleep(600)
"""

# The server is away for a while, and then gone.
AWAY = """
import time
from types import SimpleNamespace
print("SuperNode ID: 17", flush=True)
for times in (1, 5, 3):
    for _ in range(times):
        print("Connection attempt failed, retrying in 0.37 seconds", flush=True)
    if times != 3:
        print("Connection successful after 3.21 seconds and 4 tries.", flush=True)
time.sleep(600)
"""

PROGRAMS = {"deaf": DEAF, "ending": ENDING}


@pytest.fixture(params=PROGRAMS.values(), ids=PROGRAMS.keys())
def program(request):
    return request.param


@pytest.fixture
def said(tmp_path, monkeypatch, program):
    """What is reported of a SuperNode with this program."""
    monkeypatch.setattr(supernode, "ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(supernode, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(supernode, "check_server", lambda *_: 0.0)
    monkeypatch.setattr(Supernode, "_command", lambda self, *_: [sys.executable, "-c", program])
    said = []
    made = Supernode(
        "fl.example.org:8443",
        ClientFiles(*map(Path, ("keys/ca.crt", "keys/client.key", "keys/client.pub")), "a"),
        tmp_path,
        tmp_path,
        way_to_tls="",
        problem=lambda: None,
        report=said.append,
    )
    made.start()
    yield said
    made.stop()


def test_one_that_stays_but_does_nothing_is_started_again(said):
    """Without a new one the client would be deaf for good, and look well."""
    connected = "connected to fl.example.org:8443; waiting for a run"
    deadline = time.monotonic() + 30
    while said.count(connected) < 2:
        assert time.monotonic() < deadline, said
        time.sleep(0.02)
    why = "the connection to fl.example.org:8443 ended"
    assert said[:3] == [connected, f"{why}; trying again", connected]


def test_whatever_goes_wrong_is_said_and_tried_again(tmp_path, monkeypatch):
    """As on a machine that has no thread left; the client would be deaf for good in silence."""
    tries, said = [], []

    def fails(server, *_):
        tries.append(server)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(supernode, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(supernode, "check_server", fails)
    made = Supernode(
        "fl.example.org:8443", None, tmp_path, tmp_path,
        way_to_tls="", problem=lambda: None, report=said.append,
    )  # fmt: skip
    made.start()
    deadline = time.monotonic() + 30
    while len(tries) < 3:
        assert time.monotonic() < deadline, said
        time.sleep(0.02)
    made.stop()
    assert said == ["Flower's SuperNode cannot be run: can't start new thread; trying again"]


@pytest.mark.parametrize("program", [AWAY])
def test_a_server_that_is_away_is_said_once_each_time(said, tmp_path):
    """A client whose server had gone for good waited in silence; one failure alone is none.

    Its health check found it well.
    """
    gone = "fl.example.org:8443 does not answer any more; trying again"
    deadline = time.monotonic() + 30
    while said.count(gone) < 2:
        assert time.monotonic() < deadline, said
        time.sleep(0.02)
    assert said[1:] == [gone, "fl.example.org:8443 answers again", gone]
    while not (tmp_path / "problem").is_file():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (tmp_path / "problem").read_text() == gone.removesuffix("; trying again") + "\n"
    assert not (tmp_path / "alive").exists()


# What Flower writes of a refusal: the gate's, and the SuperLink's of a node that is connected.
REFUSED = """
print("Failed to initialize the connection to the SuperLink.")
print("[code: 2004] {}")
"""
NOBODY = """
import time
for _ in range(9):
    print("Connection attempt failed, retrying in 0.37 seconds", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (
            REFUSED.format(fixed_answers.REFUSED[fixed_answers.UNKNOWN_KEY_REGISTERS]),
            "refuses this client: its key is not registered there, or was revoked. Bring "
            "keys/client.pub there and run orchestra-keys register "
            "key=client.pub; trying again",
        ),
        (
            REFUSED.format("SuperNode activation failed."),
            "refuses this client: one with its key is connected already. It is taken within a "
            "minute if it was killed a moment ago; if not, a second client has a copy of its key: "
            "stop that one; trying again",
        ),
        (NOBODY, "does not let this client in yet; trying again"),
    ],
)
def test_who_is_refused_hears_it_once_with_the_cure(said, line):
    deadline = time.monotonic() + 30
    while not said:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)
    assert said == [f"fl.example.org:8443 {line}"]


def test_what_is_no_address_is_said_and_does_not_end_the_client():
    with pytest.raises(UnreachableError, match="::1:8443 is no address"):
        check_server("::1:8443", None, "")


def test_clients_do_not_come_again_at_the_same_moment(tmp_path, monkeypatch):
    def waits():
        made = Supernode(
            "x:1", None, tmp_path, tmp_path,
            way_to_tls="", problem=lambda: None, report=lambda _: None,
        )  # fmt: skip
        waited = []
        monkeypatch.setattr(made, "_connect", lambda: "it does not answer")
        made._stopping = SimpleNamespace(is_set=lambda: len(waited) == 6, wait=waited.append)
        made._run()
        return waited

    one, two = waits(), waits()
    assert all(a != b for a, b in zip(one, two, strict=True))
    longest = [2, 4, 8, 16, 30, 30]
    assert all(most / 2 <= wait <= most for most, wait in zip(longest, one, strict=True))
