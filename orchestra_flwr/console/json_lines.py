"""Lines for programs that collect logs: one JSON object each, with time, level and event."""

import json
import logging
import re
import sys
from datetime import datetime
from typing import Any

# Beginnings of lines that a program should notice, also after a client's name, and the end of those
# of a client that has lost its server.
WARNING = re.compile(
    r"(client \S+ )?(warning|refused|is refused|failed|cannot|does not|without|  dropped)\b"
    r"|.*; trying again$"
)


def json_line(event: str, level: str = "", **values: Any) -> str:
    """A line about an event, named in one word: `message` for a line written for people.

    Without a level it is a warning if the value `message` begins like one, else info.
    """
    noticed = WARNING.match(str(values.get("message", "")))
    about = {
        "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "level": level or ("warning" if noticed else "info"),
        "event": event,
    }
    return json.dumps({**about, **values}, default=str)


class JsonFormatter(logging.Formatter):
    """Lines of Python's own `logging`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, a traceback included."""
        message = record.getMessage()
        if record.exc_info:
            message += f"\n{self.formatException(record.exc_info)}"
        return json_line("log", record.levelname.lower(), logger=record.name, message=message)


def show_error(text: str) -> None:
    """Shows how a command ended, on stderr."""
    print(json_line("ended", "error", message=text), file=sys.stderr, flush=True)
