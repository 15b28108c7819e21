"""A client's SuperNode: started, watched, and started again whenever it ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

from orchestra_flwr.deployment.keys.client_keys import ClientFiles
from orchestra_flwr.deployment.keys.key_files import COMMAND
from orchestra_flwr.deployment.processes.child import Child, free_port
from orchestra_flwr.deployment.processes.reachability import UnreachableError, check_server

FIRST_WAIT, LONGEST_WAIT = 2.0, 30.0  # seconds between attempts; doubled until the longest
ALIVE_SECONDS = 5.0
NOT_ACTIVATED = "[code: 2004]"  # what Flower says to a key that is not registered
# What Flower says before it gives up for good, though its process stays: a connection that ends
# while TLS is set up is enough, as of a server behind a proxy that is started again.
GAVE_UP = "SSL/TLS handshake error detected"


class Supernode:
    """Connects a client to its server, in its own thread.

    A server that cannot be reached, a key that it does not know yet: nothing of that ends a client
    in the field. It says what is wrong, once, and tries again.

    Args:
        server: HOST:PORT.
        keys: the client's keys; None: plain text.
        channel: address where this client's process answers.
        folder: for the SuperNode's log, its home and the file `alive`, which is touched while the
            client is connected.
        report: takes a line about what happens.
    """

    def __init__(
        self,
        server: str,
        keys: ClientFiles | None,
        channel: str,
        folder: Path,
        report: Callable[[str], None],
    ) -> None:
        self._server = server
        self._keys = keys
        self._channel = channel
        self._folder = folder
        self._report = report
        self._reported = ""
        self._connected = self._gave_up = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begins to connect."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the SuperNode and waits until it has signed off at the server."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        wait = FIRST_WAIT
        while not self._stopping.is_set():
            problem = self._connect()
            if self._connected:
                wait = FIRST_WAIT
            if self._stopping.is_set():
                return
            if problem != self._reported:
                self._reported = problem
                self._report(f"{problem}; trying again")
            self._stopping.wait(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _connect(self) -> str:
        """Runs a SuperNode until it ends, gives up, or this client stops; what went wrong."""
        self._connected = self._gave_up = False
        try:
            check_server(self._server, self._keys.ca if self._keys else None)
        except UnreachableError as error:
            return str(error)
        home = self._folder / "flwr"
        log = self._folder / "supernode.log"
        node = Child(self._command(), {"FLWR_HOME": str(home)}, log, self._watch)
        try:
            while node.returncode is None and not self._stopping.wait(ALIVE_SECONDS):
                if self._gave_up:
                    break
                if self._connected:
                    (self._folder / "alive").touch()
        finally:
            node.stop()
        return self._explain(node.tail())

    def _command(self) -> list[str]:
        command = ["flower-supernode", "--superlink", self._server, "--port", str(free_port())]
        command += ["--node-config", f"channel={json.dumps(self._channel)}"]
        if self._keys is None:
            return [*command, "--insecure"]
        return [
            *command,
            "--root-certificates",
            str(self._keys.ca),
            "--auth-supernode-private-key",
            str(self._keys.key),
        ]

    def _watch(self, line: str) -> None:
        if GAVE_UP in line:
            self._gave_up = True
        if "SuperNode ID" in line and not self._connected:
            self._connected = True
            self._reported = ""
            self._report(f"connected to {self._server}; waiting for a run")

    def _explain(self, tail: list[str]) -> str:
        if self._keys is not None and any(NOT_ACTIVATED in line for line in tail):
            return (
                f"{self._server} does not take this client's key: if it is not registered, bring "
                f"{self._keys.public} there and run {COMMAND} register {self._keys.public.name}; "
                "if this client was killed a moment ago, it is taken again within a minute"
            )
        if self._connected or self._gave_up:
            return f"the connection to {self._server} ended"
        start = next((i for i, line in enumerate(tail) if "Exit Code" in line), len(tail))
        reason = " ".join(line.strip() for line in tail[start + 1 : start + 3]) or "no reason given"
        return f"the SuperNode ended: {reason} (see {self._folder / 'supernode.log'})"
