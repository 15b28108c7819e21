"""Warns in time that a certificate is going to expire, however long a process runs."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from orchestra_flwr.deployment.keys.certificates import Dated

DAY_SECONDS = 86_400.0


@contextmanager
def warning_daily(certificates: Iterable[Dated], report: Callable[[str], None]) -> Iterator[None]:
    """Reports now and once a day which certificates end within 30 days, until the block ends.

    One that is replaced is read at the next start. `report` is called from a thread.
    """
    stop = threading.Event()

    def watch() -> None:
        while True:
            for certificate in certificates:
                if (line := certificate.warning()) is not None:
                    report(f"warning: {line}")
            if stop.wait(DAY_SECONDS):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
