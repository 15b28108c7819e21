"""The SuperNode of a client: what becomes of it when it stays but does nothing any more."""

import sys
import time

import pytest

from orchestra_flwr.deployment.processes import supernode
from orchestra_flwr.deployment.processes.supernode import Health, Supernode

# What Flower 1.41 writes, in a program that stays as its own does.
DEAF = """
import sys, time
print("\\x1b[92mINFO \\x1b[0m:      SuperNode ID: 17", flush=True)
time.sleep(0.5)
print("\\x1b[91mERROR \\x1b[0m:     SSL/TLS handshake error detected.", flush=True)
time.sleep(600)
"""


@pytest.fixture
def deaf(tmp_path, monkeypatch):
    """A SuperNode whose program gives up its connection; and what is reported."""
    monkeypatch.setattr(supernode, "ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(supernode, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(supernode, "check_server", lambda server, ca: None)
    monkeypatch.setattr(Supernode, "_command", lambda self: [sys.executable, "-c", DEAF])
    said = []
    made = Supernode(
        "fl.example.org:8443",
        None,
        tmp_path,
        tmp_path,
        health=Health(tmp_path, lambda: None),
        report=said.append,
    )
    made.start()
    yield said
    made.stop()


def test_one_that_gave_up_is_started_again(deaf):
    """Its process stays: without a new one the client would be deaf for good, and look well."""
    connected = "connected to fl.example.org:8443; waiting for a run"
    deadline = time.monotonic() + 20
    while deaf.count(connected) < 2:
        assert time.monotonic() < deadline, deaf
        time.sleep(0.02)
    assert deaf[:3] == [
        connected,
        "the connection to fl.example.org:8443 ended; trying again",
        connected,
    ]
