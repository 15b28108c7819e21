"""Runs a program of Flower so that it listens at a Unix socket and at no port.

    python -P socket_server.py SOCKET flower-superlink [ARGUMENT ...]

A SuperLink takes any code to run from whoever reaches its port, and a SuperNode gives a client's
messages to whoever reaches its own: on 127.0.0.1 that is every user of the machine. A socket in a
folder with mode 0700 is reached by its owner alone.

Checked against Flower 1.41: both programs serve by uvicorn, which prefers a socket (`uds`) to a
port. Where that ever changes, the socket does not appear, and who waits for it says so.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

PROGRAMS = {
    "flower-superlink": ("flwr.superlink.cli", "flower_superlink"),
    "flower-supernode": ("flwr.supernode.cli", "flower_supernode"),
}


def socket_server_command(socket: Path, program: str) -> list[str]:
    """The command that runs one of Flower's programs at a socket; its arguments come after it."""
    return [sys.executable, "-P", __file__, str(socket), program]


def main(arguments: list[str]) -> None:
    """Serves until the program ends."""
    socket, name, *sys.argv[1:] = arguments
    sys.argv[0] = name
    listen_at(socket)
    module, function = PROGRAMS[name]
    getattr(import_module(module), function)()


def listen_at(socket: str) -> None:
    """Makes every server of this process that uvicorn starts listen at `socket`."""
    config = import_module("uvicorn").Config
    original = config.__init__

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
        original(self, *arguments, **{**options, "uds": socket})

    config.__init__ = __init__


if __name__ == "__main__":
    main(sys.argv[1:])
