"""Flower's command line: the one supported way to submit a run and to register clients."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestra_flwr.deployment.processes.child import child_environment, python_command
from orchestra_flwr.deployment.processes.scratch_folder import flower_folders
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.files import write_atomically
from orchestra_flwr.flower.deployed_app import PROJECT
from orchestra_flwr.flower.socket_client import HOST

CONNECTION = "orchestra"
IN_USE = "already in use"  # what Flower says of a key that it has
END = "\x00"  # which flwr_commands writes after the output of each
PROGRAM = "orchestra_flwr.flower.flwr_commands:main"  # not imported: that takes seconds


class FlowerError(FederationError):
    """A command of Flower failed; the text is Flower's."""


class Flower:
    """The `flwr` command for the SuperLink at a socket, with a home of its own in `scratch`.

    `ca` is the certificate that signed the SuperLink's; None: plain text.
    """

    def __init__(self, scratch: Path, socket: Path, ca: Path | None) -> None:
        self._folders = flower_folders(scratch)
        self._arguments = [str(socket), str(ca.resolve()) if ca else ""]
        self._home = home = Path(self._folders["FLWR_HOME"])
        home.mkdir(exist_ok=True)
        security = f"insecure = {'true' if ca is None else 'false'}"
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n'
        text += f'[superlink.{CONNECTION}]\naddress = "{HOST}:1"\n{security}\n'
        write_atomically(home / "config.toml", text.encode())

    def start_run(self) -> int:
        """Submits the deployment's app; the number of the run.

        Raises:
            FlowerError: the SuperLink did not take it.
        """
        app = self._home / "app"
        app.mkdir(exist_ok=True)
        write_atomically(app / "pyproject.toml", PROJECT.encode())
        (outcome,) = self._call([["run", str(app), CONNECTION]])
        if not outcome.get("success"):
            why = " ".join(str(outcome.get("error-message", outcome)).split())
            raise FlowerError(f"the run could not be started: {why}")
        return int(outcome["run-id"])

    def stop_run(self, run: int) -> None:
        """Ends a run at the SuperLink: its messages are not delivered any more.

        Raises:
            FlowerError: no command was run to its end.
        """
        self._call([["stop", str(run), CONNECTION]])

    def register(self, clients: Sequence[tuple[str, Path]]) -> dict[str, str | None]:
        """Registers (name, public key file) pairs; what Flower has against each, None: nothing.

        A key that the SuperLink has already counts as taken: an earlier command may have been cut
        off after it had succeeded. Flower never takes a key a second time, not even one that was
        unregistered: see :class:`Roster`.

        Raises:
            FlowerError: no command was run to its end.
        """
        outcomes = self._call(
            [["supernode", "register", str(key), CONNECTION] for _, key in clients]
        )
        return {
            name: _objection(outcome) for (name, _), outcome in zip(clients, outcomes, strict=True)
        }

    def _call(self, commands: list[list[str]]) -> list[dict[str, Any]]:
        try:
            done = subprocess.run(
                python_command(PROGRAM, *self._arguments),
                env=child_environment(self._folders),
                input=json.dumps(commands),  # an argument may have 128 KiB, a thousand clients
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise FlowerError(f"flwr cannot be run: {error}") from error
        outputs = done.stdout.split(END)[: len(commands)]
        if len(outputs) < len(commands):
            raise FlowerError(done.stderr.strip() or "flwr ended early")
        return [_last_json(text) for text in outputs]


def _objection(outcome: dict[str, Any]) -> str | None:
    text = " ".join(str(outcome.get("error-message", outcome)).split())
    return None if outcome.get("success") or IN_USE in text.lower() else text


def _last_json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text[text.index("{") :])
    except ValueError:
        return {"success": False, "error-message": text.strip()}
    return found if isinstance(found, dict) else {"success": False, "error-message": text}
