"""The lines of a program that runs for long: with the time of day, or as JSON."""

import time
from collections.abc import Callable

from orchestra_flwr.console.json_lines import json_line
from orchestra_flwr.console.printable import printable


def reporter(format: str, client: str = "") -> Callable[..., None]:
    """What shows a line on stdout.

    Args:
        format: of `logging.format`, text or json.
        client: whose lines they are; "": a server's.

    Returns:
        Takes a line for people and, of a line for programs, the event (else `message`), the level
        (else what the line begins with decides) and more values, as :func:`json_line` does.
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
