"""What takes long is said, in few lines."""

import time

import pytest

from orchestra_flwr.console import phases
from orchestra_flwr.console.phases import phase


def test_a_short_phase_leaves_no_line():
    lines = []
    with phase("reading", lines.append):
        pass
    assert lines == []


def test_a_long_phase_is_said_soon_and_then_seldom(monkeypatch):
    assert phases.FIRST_SECONDS < 3  # nothing is silent for longer
    monkeypatch.setattr(phases, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(phases, "LATER_SECONDS", 0.2)
    lines = []
    with phase("reading", lines.append):
        deadline = time.monotonic() + 20
        while len(lines) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert lines[:3] == ["reading ...", "reading: 0 s so far", lines[2]]


def test_an_error_ends_the_phase(monkeypatch):
    monkeypatch.setattr(phases, "FIRST_SECONDS", 0.05)
    lines = []
    with pytest.raises(ValueError), phase("reading", lines.append):
        raise ValueError
    time.sleep(0.2)
    assert lines == []


def test_a_phase_that_begins_a_program_is_said_before_anything_else():
    lines = []
    with phase("starting", lines.append, at_once=True):
        assert lines == ["starting ..."]
    assert lines == ["starting ..."]
