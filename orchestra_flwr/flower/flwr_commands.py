"""Runs commands of the `flwr` program at a SuperLink's socket.

Checked against Flower 1.41: `flwr.cli.app.app` is the program, made with Typer.
"""

import json
import sys
from pathlib import Path

from flwr.cli.app import app

from orchestra_flwr.flower.socket_client import connect_all_through

END = "\x00"  # between the outputs of two commands


def main() -> None:
    """Runs the list of commands on standard input: one start of `flwr`, which takes seconds.

    `sys.argv` holds the SuperLink's socket, and the certificate that signed its own or "".
    """
    _, socket, ca = sys.argv
    connect_all_through(Path(socket), Path(ca) if ca else None)
    for command in json.load(sys.stdin):
        try:
            app([*command, "--format", "json"], standalone_mode=False)
        except (Exception, SystemExit) as error:
            print(json.dumps({"success": False, "error-message": str(error)}))
        print(END, end="", flush=True)
