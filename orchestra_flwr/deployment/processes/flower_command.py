"""Flower's command line: the one supported way to submit a run and to register clients."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestra_flwr.deployment.processes.child import child_environment
from orchestra_flwr.files import write_atomically

CONNECTION = "orchestra"
END = "\x00"  # between the outputs of two commands
# Starting `flwr` takes seconds: one process runs a list of its commands.
_BATCH = """
import json, sys
from flwr.cli.app import app
for command in json.loads(sys.argv[1]):
    try:
        app([*command, "--format", "json"], standalone_mode=False)
    except (Exception, SystemExit) as error:
        print(json.dumps({"success": False, "error-message": str(error)}))
    print("\\x00", end="", flush=True)
"""
# The app holds no code of its own: server and clients run the package that they have installed.
_PROJECT = """
[project]
name = "orchestra-deployment"
version = "1.0.0"
description = "Orchestra on real clients"
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = []

[tool.flwr.app]
publisher = "orchestra-flwr"
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "orchestra_flwr.deployment.processes.federation_app:app"
clientapp = "orchestra_flwr.deployment.channel.relay_app:app"

[tool.flwr.app.config]
channel = ""
"""


class FlowerError(RuntimeError):
    """A command of Flower failed; the text is Flower's."""


class Flower:
    """The `flwr` command for one SuperLink, with a home of its own.

    Args:
        home: a folder for Flower's files; also the FLWR_HOME of everything that belongs to it.
        address: HOST:PORT of the SuperLink.
        ca: the certificate that signed the SuperLink's; None: plain text.
    """

    def __init__(self, home: Path, address: str, ca: Path | None) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        security = "insecure = true" if ca is None else f'root-certificates = "{ca.resolve()}"'
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n'
        text += f'[superlink.{CONNECTION}]\naddress = "{address}"\n{security}\n'
        write_atomically(home / "config.toml", text.encode())

    def start_run(self, channel: str) -> None:
        """Submits the deployment's app.

        Raises:
            FlowerError: the SuperLink did not take it.
        """
        app = self.home / "app"
        app.mkdir(exist_ok=True)
        write_atomically(app / "pyproject.toml", _PROJECT.encode())
        override = f"channel={json.dumps(channel)}"
        (outcome,) = self._call([["run", str(app), CONNECTION, "--run-config", override]])
        if not outcome.get("success"):
            raise FlowerError(
                f"the run could not be started: {outcome.get('error-message', outcome)}"
            )

    def register(self, clients: Sequence[tuple[str, Path]]) -> dict[str, int]:
        """Registers (name, public key file) pairs; the node id of each that succeeded."""
        outcomes = self._call(
            [
                ["supernode", "register", str(key), CONNECTION, "--name", name]
                for name, key in clients
            ]
        )
        return {
            name: int(outcome["node-id"])
            for (name, _), outcome in zip(clients, outcomes, strict=True)
            if outcome.get("success")
        }

    def unregister(self, nodes: Sequence[int]) -> None:
        """Ends the registration of nodes; they are cut off."""
        self._call([["supernode", "unregister", str(node), CONNECTION] for node in nodes])

    def _call(self, commands: list[list[str]]) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-c", _BATCH, json.dumps(commands)],
            env=child_environment({"FLWR_HOME": str(self.home)}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        outputs = done.stdout.split(END)[: len(commands)]
        if len(outputs) < len(commands):
            raise FlowerError(done.stderr.strip() or "flwr ended early")
        return [_last_json(text) for text in outputs]


def _last_json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text[text.index("{") :])
    except ValueError:
        return {"success": False, "error-message": text.strip()}
    return found if isinstance(found, dict) else {"success": False, "error-message": text}
