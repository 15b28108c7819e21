import asyncio

import pytest

from orchestra_flwr.deployment.gate import refusals


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """What was last turned away was so at 17:09:12, whenever the line is written."""
    monkeypatch.setattr(refusals.time, "strftime", lambda *_: "17:09:12")


def test_lines_are_counted_for_a_minute(monkeypatch):
    monkeypatch.setattr(refusals, "QUIET_SECONDS", 0.01)
    lines = []

    async def report():
        reports = refusals.Refusals(lines.append)
        for _ in range(13):
            reports.report("10.0.0.1", "path", "asked for x")
        reports.report("10.0.0.1", "http", "is odd")
        reports.report("10.0.0.2", "path", "asked for y")
        assert len(lines) == 3
        await asyncio.sleep(0.1)
        reports.report("10.0.0.1", "path", "asked for x")
        reports.report("10.0.0.1", "path", "asked for z")
        reports.close()

    asyncio.run(report())
    assert lines == [
        "refused: 10.0.0.1: asked for x",
        "refused: 10.0.0.1: is odd",
        "refused: 10.0.0.2: asked for y",
        "refused: 10.0.0.1: asked for x (at 17:09:12, and 11 like it within a minute)",
        "refused: 10.0.0.1: asked for x",
        "refused: 10.0.0.1: asked for z (at 17:09:12)",
    ]


def test_many_peers_do_not_fill_the_log(monkeypatch):
    monkeypatch.setattr(refusals, "MAX_REASONS", 3)
    lines = []

    async def report():
        reports = refusals.Refusals(lines.append)
        for number in range(50):
            reports.report(f"10.0.0.{number}", "http", "is odd")
        reports.close()

    asyncio.run(report())
    assert len(lines) == 5
    assert (
        lines[-1] == "refused: more than 3 peers are turned away, the last is 10.0.0.49: is odd "
        "(at 17:09:12, and 45 like it within a minute)"
    )


def test_lines_of_one_kind_are_counted_together():
    lines = []

    async def report():
        reports = refusals.Refusals(lines.append)
        for number in (1, 2, 2, 2):
            reports.report("10.0.0.1", "size", f"sent {number} MB")
        for number in (1, 2, 3):
            reports.report("10.0.0.1", "key", f"key {number}")
        reports.close()

    asyncio.run(report())
    assert lines[-2:] == [
        "refused: 10.0.0.1: sent 2 MB (at 17:09:12, and 2 like it within a minute)",
        "refused: 10.0.0.1: key 3 (at 17:09:12, and 1 like it within a minute)",
    ]


def test_after_the_end_nothing_is_repeated_and_nothing_fails(monkeypatch):
    monkeypatch.setattr(refusals, "QUIET_SECONDS", 0.01)
    lines, failures = [], []

    async def report():
        asyncio.get_running_loop().set_exception_handler(
            lambda _, failure: failures.append(failure)
        )
        reports = refusals.Refusals(lines.append)
        reports.report("10.0.0.1", "path", "asked for x")
        reports.close()
        await asyncio.sleep(0.1)

    asyncio.run(report())
    assert lines == ["refused: 10.0.0.1: asked for x"] and not failures
