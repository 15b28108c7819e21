"""Progress over images: a bar on a terminal or in a notebook, elsewhere a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

OnProgress = Callable[[int, int], None]

INTERVAL = 10.0  # seconds between lines


def no_progress(done: int, total: int | None) -> None:
    """Shows nothing."""


@contextmanager
def image_count(
    total: int | None, doing: str = "embedded"
) -> Iterator[Callable[[int, int | None], None]]:
    """Shows progress on stderr during the block; yields a function of images done and total.

    Args:
        total: how many images there are; None: not known.
        doing: what has been done with those that are done.
    """
    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield _lines(doing)
        return
    columns = (
        TextColumn(f"images {doing}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        task = bars.add_task("images", total=total)
        yield lambda done, total: bars.update(task, completed=done)


def _lines(doing: str) -> Callable[[int, int | None], None]:
    began = last = time.monotonic()

    def show(done: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= INTERVAL or done == total:
            last = now
            of = "" if total is None else f" of {total:,}"
            line = f"{doing} {done:,}{of} images, {now - began:.0f} s"
            print(line, file=sys.stderr, flush=True)

    return show
