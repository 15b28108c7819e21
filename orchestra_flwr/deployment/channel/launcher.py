"""What a SuperNode finds in place of Flower's SuperExec."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

NAME = "flower-superexec"  # by which a SuperNode starts it
PROGRAM = "from orchestra_flwr.deployment.channel.client_program import main; main()"


def put_launcher(folder: Path) -> None:
    """Writes a program of Flower's name that starts ours; for the front of PATH.

    Raises:
        OSError: it cannot be written; or it could not be started, and Flower's own program, which
            sends the texts of errors to the server, would be found in its place.
    """
    folder.mkdir(exist_ok=True)
    launcher = folder / NAME
    launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{PROGRAM}" "$@"\n')
    launcher.chmod(0o700)
    if not os.access(launcher, os.X_OK):
        raise PermissionError(
            f"{launcher} cannot be started, as on a disk that is mounted with noexec: set TMPDIR "
            "to a folder from which programs can be, such as TMPDIR=/var/tmp"
        )
