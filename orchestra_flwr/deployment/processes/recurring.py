"""What a process does again and again beside its work, such as a look at its certificates."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from orchestra_flwr.deployment.keys.certificates import Dated

DAY_SECONDS = 86_400.0


@contextmanager
def recurring(work: Callable[[], None], seconds: float) -> Iterator[None]:
    """Does the work now and then every so many seconds, in a thread, until the block ends."""
    work()
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(seconds):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def warning_daily(
    certificates: Iterable[Dated], report: Callable[[str], None]
) -> AbstractContextManager[None]:
    """Reports now and once a day which certificates end within 30 days, until the block ends.

    One that is replaced is read at the next start. `report` is called from a thread.
    """

    def warn() -> None:
        for certificate in certificates:
            if (line := certificate.warning()) is not None:
                report(f"warning: {line}")

    return recurring(warn, DAY_SECONDS)
