"""How many images are embedded: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from orchestra_flwr.reporting.text import duration

INTERVAL = 10  # seconds between lines


@contextmanager
def embedding_progress(total: int) -> Iterator[Callable[[int], None]]:
    """Shows the progress on stderr in the block; yields what is called with each step.

    Args:
        total: how many images there are.
    """
    decoding = logging.getLogger("orchestra_flwr.data")
    before = decoding.level
    decoding.setLevel(logging.WARNING)  # its own progress would stand between these lines
    try:
        with _shown(total) as advance:
            yield advance
    finally:
        decoding.setLevel(before)


@contextmanager
def _shown(total: int) -> Iterator[Callable[[int], None]]:
    if sys.stderr.isatty():
        columns = (TextColumn("images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bars(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task("images", total=total)
            yield lambda count: bars.advance(task, count)
        return
    yield _Lines(total).advance


class _Lines:
    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = self._last = time.monotonic()

    def advance(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._last >= INTERVAL or self._done == self._total:
            self._last = now
            done, total = f"{self._done:,}", f"{self._total:,}"
            seconds = duration(now - self._began)
            print(f"embedded {done} of {total} images, {seconds}", file=sys.stderr, flush=True)
