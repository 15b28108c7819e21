import io

import pytest
from rich.console import Console

from orchestra_flwr.console import image_count as module
from orchestra_flwr.console.image_count import image_count


def test_lines_every_ten_seconds_and_at_the_end(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    with image_count(3000) as on_progress:
        for done, seconds in ((0, 0), (500, 9), (1000, 11), (1500, 20), (2000, 22), (3000, 23)):
            now = float(seconds)
            on_progress(done, 3000)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.splitlines() == [
        "embedded 1,000 of 3,000 images, 11 s",
        "embedded 2,000 of 3,000 images, 22 s",
        "embedded 3,000 of 3,000 images, 23 s",
    ]


@pytest.mark.parametrize("total", [4, None])
def test_a_terminal_has_a_bar(total, monkeypatch):
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=80)
    monkeypatch.setattr(module, "Console", lambda stderr: terminal)
    with image_count(total) as on_progress:
        on_progress(2, total)
        on_progress(4, total)
    assert ("4/4" if total else "4/?") in shown.getvalue()
