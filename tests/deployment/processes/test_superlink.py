"""The wait for a SuperLink: as long as it makes progress, on however busy a machine."""

import socket
from types import SimpleNamespace

import pytest

from orchestra_flwr.deployment.processes import superlink
from orchestra_flwr.deployment.processes.superlink import wait_until_up
from orchestra_flwr.federation.errors import FederationError


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(superlink.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(superlink.time, "sleep", lambda _: now.__setitem__(0, now[0] + 30))
    return now


def test_one_that_computes_for_many_minutes_is_waited_for(tmp_path, clock):
    """A minute was not enough where many programs share a processor."""
    with socket.socket(socket.AF_UNIX) as listener:

        class Busy:
            returncode = None

            @property
            def progress(self):
                if clock[0] == 900:
                    listener.bind(str(tmp_path / "link"))
                    listener.listen()
                return 0, str(clock[0])

        wait_until_up(tmp_path / "link", Busy())
        assert clock[0] >= 900


def test_one_that_does_nothing_is_given_up(tmp_path, clock):
    stuck = SimpleNamespace(returncode=None, progress=(0, "7 1"), log="run/superlink.log")
    with pytest.raises(FederationError, match=r"for 120 s it has done nothing \(end of run"):
        wait_until_up(tmp_path / "link", stuck)


def test_of_one_that_ended_the_last_line_is_said(tmp_path):
    ended = SimpleNamespace(returncode=1, progress=(1, ""), tail=lambda: ["no memory", ""], log="l")
    with pytest.raises(FederationError, match=r"did not start: no memory \(end of l\)"):
        wait_until_up(tmp_path / "link", ended)
