"""The lines of a long-running program: with the time of day, or as JSON."""

import time
from collections.abc import Callable

from orchestra_flwr.console.json_lines import json_line
from orchestra_flwr.console.printable import printable


def reporter(format: str, client: str = "") -> Callable[..., None]:
    """A function that prints a line of a client or, without a name, of a server on stdout.

    Returns:
        It takes a line for people and, for JSON alone, the other arguments of :func:`json_line`.
    """

    def report(line: str, event: str = "message", level: str = "", **values: str) -> None:
        if format == "json":
            about = {"client": client, **values} if client else values
            text = json_line(event, level, message=line, **about)
        else:
            who = f"{client}: " if client else ""
            text = f"{time.strftime('%H:%M:%S')} {who}{printable(line)}"
        print(text, flush=True)

    return report
