"""Flower's program `flwr-clientapp`, which a SuperNode starts for every message, without texts.

What goes wrong in it before our app is asked becomes an error with the exception's text, which the
SuperNode sends to the server. That text may hold paths of this machine: only the code is sent, and
the text is in the SuperNode's log.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

from flwr.app import Error

NAME = "flwr-clientapp"  # by which SuperExec starts it
POLL_SECONDS = 1.0
GRACE_SECONDS = 20.0


def put_launcher(folder: Path) -> None:
    """Writes a program of Flower's name that starts this one; for the front of PATH."""
    folder.mkdir(exist_ok=True)
    launcher = folder / NAME
    python = shlex.quote(sys.executable)
    launcher.write_text(f'#!/bin/sh\nexec {python} -m {__name__} "$@"\n')
    launcher.chmod(0o700)


def leave_out_texts() -> None:
    """Makes Flower's program send errors without their texts."""
    # Not by `import ... as`: the package has a function of the module's name.
    program = import_module("flwr.supernode.runtime.run_clientapp")
    vars(program)["Error"] = _without_text


def end_with_parent(grace: float = GRACE_SECONDS) -> None:
    """Ends this process so many seconds after the one that started it, however busy it is.

    Flower ends the program by itself when its parent is killed, but waits for its own threads,
    which can last for ever.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _without_text(code: int, reason: str | None = None) -> Error:
    return Error(code)


if __name__ == "__main__":
    from flwr.supernode.cli import flwr_clientapp

    leave_out_texts()
    end_with_parent()
    flwr_clientapp()
