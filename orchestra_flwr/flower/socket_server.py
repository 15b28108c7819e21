"""Runs a program of Flower so that it listens at a Unix socket and at no port.

    python -P socket_server.py SOCKET SIGNING_TIME flower-superlink [ARGUMENT ...]

A SuperLink takes any code to run from whoever reaches its port, and a SuperNode gives a client's
messages to whoever reaches its own: on 127.0.0.1 that is every user of the machine. A socket in a
folder with mode 0700 is reached by its owner alone.

A SuperNode signs the time of each request, and a SuperLink refuses one that is 5 s ahead of its
own. So SIGNING_TIME says what is to be added to `clock()` to get the server's time; "" leaves the
machine's own.

What these programs do wrong where a federation runs for weeks is mended by `program_faults.py`.

Checked against Flower 1.41 and 1.42: both programs serve by uvicorn, which prefers a socket (`uds`)
to a port. If that ever changes, the socket does not appear, and what waits for it says so. The time
that a SuperNode signs is that of `now` in `flwr.supernode.node_auth_http_interceptor`.
"""

import os
import runpy
import sys
import time
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

FAULTS = Path(__file__).with_name("program_faults.py")
PROGRAMS = {
    "flower-superlink": ("flwr.superlink.cli", "flower_superlink"),
    "flower-supernode": ("flwr.supernode.cli", "flower_supernode"),
}


def socket_server_command(
    socket: Path, program: str, signing_time: float | None = None
) -> list[str]:
    """The command that runs one of Flower's programs at a socket; its arguments come after it.

    Args:
        signing_time: the server's time in seconds less `clock()`; None: this machine's own time.
    """
    shift = "" if signing_time is None else f"{signing_time:.3f}"
    return [sys.executable, "-P", __file__, str(socket), shift, program]


def clock() -> float:
    """Seconds on a clock that nobody sets, the same in all processes of this machine."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def main(arguments: list[str]) -> None:
    """Serves until the program ends."""
    socket, signing_time, name, *sys.argv[1:] = arguments
    sys.argv[0] = name
    listen_at(socket)
    # Read by its place: this process need not find the package.
    runpy.run_path(str(FAULTS))["mend"](name)
    if signing_time:
        sign_at(float(signing_time))
    module, function = PROGRAMS[name]
    getattr(import_module(module), function)()
    if name == "flower-supernode":
        os._exit(1)  # it is over, and the thread that serves the socket would go on


def listen_at(socket: str) -> None:
    """Makes every server of this process that uvicorn starts listen at `socket`."""
    config = import_module("uvicorn").Config
    original = config.__init__

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
        original(self, *arguments, **{**options, "uds": socket})

    config.__init__ = __init__


def sign_at(signing_time: float) -> None:
    """Lets a SuperNode of this process sign the time of its server, whatever the machine's is."""

    def now() -> datetime:
        return datetime.fromtimestamp(clock() + signing_time, tz=UTC)

    interceptor: Any = import_module("flwr.supernode.node_auth_http_interceptor")
    interceptor.now = now


if __name__ == "__main__":
    main(sys.argv[1:])
