"""A certificate that ends soon is said at the start, and while a process runs."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestra_flwr.deployment.keys.certificates import Dated, new_authority
from orchestra_flwr.deployment.processes import recurring


@pytest.fixture
def ending():
    """An authority that has 20 days left of its ten years, and one that has all."""
    now = datetime.now(UTC)
    made = [new_authority(now - timedelta(days=past)).certificate for past in (3632, 0)]
    return [Dated(Path("ca.crt"), certificate, "make it anew") for certificate in made]


def test_a_long_run_says_every_day_what_ends_within_a_month(ending, monkeypatch):
    monkeypatch.setattr(recurring, "DAY_SECONDS", 0.05)
    lines = []
    with recurring.warning_daily(ending, lines.append):
        while len(lines) < 3:
            time.sleep(0.01)
    assert len(lines) < 100  # none comes after the block
    (line,) = set(lines)
    assert line.startswith("warning: ca.crt expires on ") and line.endswith(": make it anew")


def test_what_ends_during_a_run_is_said_then(monkeypatch):
    monkeypatch.setattr(recurring, "DAY_SECONDS", 0.02)
    soon = datetime.now(UTC) + timedelta(days=30, seconds=2.5)
    certificate = new_authority(soon - timedelta(days=3652)).certificate
    lines, started = [], time.monotonic()
    with recurring.warning_daily([Dated(Path("ca.crt"), certificate, "x")], lines.append):
        assert lines == []
        while not lines:
            assert time.monotonic() - started < 20
            time.sleep(0.02)
