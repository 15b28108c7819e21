"""Progress lines of a phase outside the rounds, such as reading images, at growing intervals.

In a log file a phase of a second leaves no line, and one of an hour a dozen.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST_SECONDS = 2.0  # of silence, before the first line
LATER_SECONDS = 15.0  # until the second line; from line to line it doubles
MAX_SECONDS = 600.0  # between two lines


@contextmanager
def phase(text: str, show: Callable[[str], None], *, at_once: bool = False) -> Iterator[None]:
    """Shows lines about a phase ("starting Ray") from another thread while the block runs.

    `at_once`: the first one is shown before the block begins.
    """
    over = threading.Event()

    def watch() -> None:
        began, wait = time.monotonic(), LATER_SECONDS
        if not at_once:
            if over.wait(FIRST_SECONDS):
                return
            show(f"{text} ...")
        while not over.wait(wait):
            show(f"{text}: {time.monotonic() - began:.0f} s so far")
            wait = min(2 * wait, MAX_SECONDS)

    if at_once:
        show(f"{text} ...")
    watcher = threading.Thread(target=watch, name="phase", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
