"""What a SuperNode finds in place of Flower's SuperExec."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

NAME = "flower-superexec"  # by which a SuperNode starts it
PROGRAM = "from orchestra_flwr.deployment.channel.client_program import main; main()"


def put_launcher(folder: Path) -> None:
    """Writes a program of Flower's name that starts ours; for the front of PATH."""
    folder.mkdir(exist_ok=True)
    launcher = folder / NAME
    launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{PROGRAM}" "$@"\n')
    launcher.chmod(0o700)
