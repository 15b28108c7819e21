"""How a command ends: errors and signals as one line and an exit code."""

import errno
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.plugins import describe, is_of_users_code

RESUME_HINT = "stopped; the same command continues"
BEGINS_AGAIN = "stopped; the same command starts over"


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled as Ctrl-C."""


def stop_on_sigterm() -> None:
    """Makes SIGTERM an exception, so that children are stopped and folders stay consistent."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)


def run_command(
    work: Callable[[], int | None],
    stopped: str | Callable[[], str],
    *failures: type[Exception],
    advice: Callable[[Exception], str] | None = None,
    show: Callable[[str], None] | None = None,
) -> int:
    """Runs a command's work, shows an error or signal as one line, and returns the exit code.

    Args:
        work: returns an exit code; None: 0.
        stopped: the line for a signal, or its maker; the exit code is 128 plus the signal's number.
        failures: errors with code 1, as are all that a plug-in of a user's package raises. A
            :class:`ConfigError` and a path that is too long for the disk have code 2.
        advice: makes a second line for a failure.
        show: shows a line; None: on stderr.
    """
    show = show or _show
    try:
        return work() or 0
    except ConfigError as error:
        show(f"error: {error}")
        return 2
    except Exception as error:
        expected = isinstance(error, failures)
        # Any key that is a path or part of one can have such a value.
        if not expected and isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            show(f"error: {error.strerror}: {str(error.filename)[:60]}...")
            return 2
        if not (expected or is_of_users_code(error)):
            raise
        show(f"error: {error if expected else describe(error)}")
        if advice:
            show(advice(error))
        return 1
    except KeyboardInterrupt as stop:
        show(stopped if isinstance(stopped, str) else stopped())
        return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def _show(line: str) -> None:
    print(printable(line), file=sys.stderr)
