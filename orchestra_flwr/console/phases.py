"""What goes on while no round does: a line when it takes longer than a few seconds, and later more.

In a log file a phase that is over at once leaves no line, and one of an hour leaves a dozen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST_SECONDS = 2.0  # of silence, before the first line
LATER_SECONDS = 15.0  # until the second line; from line to line it doubles
LONGEST_SECONDS = 600.0  # between two lines


@contextmanager
def phase(text: str, show: Callable[[str], None], first: float | None = None) -> Iterator[None]:
    """Shows, from another thread, that something goes on for as long as the block runs.

    Args:
        text: what goes on, such as "starting Ray".
        show: shows a line.
        first: seconds until the first line; None: two.
    """
    over = threading.Event()

    def watch() -> None:
        began, wait = time.monotonic(), LATER_SECONDS
        if over.wait(FIRST_SECONDS if first is None else first):
            return
        show(f"{text} ...")
        while not over.wait(wait):
            show(f"{text}: {time.monotonic() - began:.0f} s so far")
            wait = min(2 * wait, LONGEST_SECONDS)

    watcher = threading.Thread(target=watch, name="phase", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
