"""A client's SuperNode: started, watched, and started again whenever it ends."""

import itertools
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from orchestra_flwr.console.printable import printable
from orchestra_flwr.deployment.keys.client_keys import ClientFiles
from orchestra_flwr.deployment.keys.key_files import COMMAND
from orchestra_flwr.deployment.processes.child import Child
from orchestra_flwr.deployment.processes.reachability import (
    UnreachableError,
    check_server,
    clock_difference,
)
from orchestra_flwr.deployment.processes.scratch_folder import flower_folders
from orchestra_flwr.files import write_atomically
from orchestra_flwr.flower.fleet import MAX_AGE, MAX_AHEAD
from orchestra_flwr.flower.socket_server import clock, socket_server_command

FIRST_WAIT, MAX_WAIT = 2.0, 30.0  # seconds between attempts; doubled until the longest
ALIVE_SECONDS, POLL_SECONDS = 5.0, 0.1
# Requests are signed with a time so long ago that no clock that runs fast gets ahead of the
# server's by more than Flower allows.
SIGNED_AGO = 60.0
SOCKET = "node"  # with a number: its name in the temporary folder
NOT_ACTIVATED = "[code: 2004]"  # what Flower says to a key that it does not let in
UNREGISTERED = "This key is not registered."  # follows it where the server's own gate said so
# What Flower says before it gives up for good, though its process stays for a while or for ever. A
# connection that ends in the TLS handshake is enough, as when a server behind a proxy restarts; so
# is a server that no longer accepts the key, or that has restarted and knows no such node.
FAILURE_LINES = ("SSL/TLS handshake error detected", "SuperNode terminated gracefully")
FAILED, SUCCEEDED = "Connection attempt failed", "Connection successful"
FAILURES = 3  # in a row, before it is reported: a single one is over within a second


def show_health(folder: Path, problem: str | None) -> None:
    """Leaves a file `alive` for a health check, or a file `problem` that says what is wrong.

    A client that is connected but refuses the run, or fails in it, is not well.
    """
    alive, file = folder / "alive", folder / "problem"
    with suppress(OSError):  # on a full disk the client goes on, and does not look well
        if problem is None:
            alive.touch()
            file.unlink(missing_ok=True)
        else:
            alive.unlink(missing_ok=True)
            # It may hold what a server sent, or names of files, which need not be UTF-8.
            text = f"{printable(problem)}\n".encode()
            if not file.is_file() or file.read_bytes() != text:  # spares the card of a board
                write_atomically(file, text, mode=0o600)


class Supernode:
    """Connects a client to its server, in its own thread.

    Neither a server that cannot be reached nor a key that it does not know yet ends a client in the
    field. It says what is wrong, once, and tries again.

    Attributes:
        socket: where the SuperNode hands out messages; None: it is not connected.
        trouble: what keeps the client from its server; "" if nothing does.

    Args:
        server: HOST:PORT.
        keys: the client's keys; None: plain text.
        scratch: a folder that its owner alone may enter, for Flower's files and for the socket.
        way_to_tls: what a client without keys has to do where the server speaks TLS.
        folder: for the SuperNode's log and what a health check looks at.
        problem: gives what keeps a connected client from taking part; None: nothing does.
    """

    def __init__(
        self,
        server: str,
        keys: ClientFiles | None,
        scratch: Path,
        folder: Path,
        *,
        way_to_tls: str,
        problem: Callable[[], str | None],
        report: Callable[[str], None],
    ) -> None:
        self._server = server
        self._keys = keys
        self._scratch = scratch
        self._folder = folder
        self._way_to_tls = way_to_tls
        self._problem = problem
        self._report = report
        self.trouble = ""
        self._clock_reported = False
        self._connected = self._gave_up = False
        self._failures = 0
        self.socket: Path | None = None
        self._numbers = itertools.count()
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
            try:
                problem = self._connect()
            except Exception as error:  # of whatever kind: without this thread the client is deaf
                problem = f"Flower's SuperNode cannot be run: {error}"
            if self._connected:
                wait = FIRST_WAIT
            if self._stopping.is_set():
                return
            self._say(problem)
            show_health(self._folder, problem)
            # A thousand clients must not all come at the moment at which a server is back.
            self._stopping.wait(wait * random.uniform(0.5, 1))  # noqa: S311 (no secret)
            wait = min(2 * wait, MAX_WAIT)

    def _connect(self) -> str:
        """Runs a SuperNode until it ends, gives up, or is stopped; returns what went wrong."""
        self._connected = self._gave_up = False
        self._failures = 0
        try:
            ca = self._keys.ca if self._keys else None
            ahead = check_server(self._server, ca, self._way_to_tls)
        except UnreachableError as error:
            return str(error)
        self._report_clock(ahead)
        log = self._folder / "supernode.log"
        socket = self._scratch / f"{SOCKET}{next(self._numbers)}"
        node = Child(self._command(socket, ahead), flower_folders(self._scratch), log, self._watch)
        try:
            while node.returncode is None and not self._gave_up:
                self.socket = socket if self._connected else None
                if self._connected:
                    show_health(self._folder, self.trouble or self._problem())
                if self._stopping.wait(ALIVE_SECONDS if self._connected else POLL_SECONDS):
                    break
        finally:
            self.socket = None
            node.stop()
            socket.unlink(missing_ok=True)
        return self._explain(node.tail())

    def _report_clock(self, ahead: float) -> None:
        """Says once that the clocks differ by more than Flower itself would allow."""
        differs = self._keys is not None and not -MAX_AGE < ahead < MAX_AHEAD
        if differs and not self._clock_reported:
            line = clock_difference(ahead, self._server)
            self._report(f"{line}; it takes part by the server's time")
        self._clock_reported = differs

    def _command(self, socket: Path, ahead: float) -> list[str]:
        signing_time = time.time() - ahead - SIGNED_AGO - clock()
        command = socket_server_command(socket, "flower-supernode", signing_time)
        command += ["--superlink", self._server, "--isolation", "process"]
        if self._keys is None:
            return [*command, "--insecure"]
        return [
            *command,
            f"--root-certificates={self._keys.ca}",
            f"--auth-supernode-private-key={self._keys.key}",
        ]

    def _watch(self, line: str) -> None:
        if any(words in line for words in FAILURE_LINES):
            self._gave_up = True
        if FAILED in line:
            self._failures += 1
            if self._failures == FAILURES:
                why = "answer any more" if self._connected else "let this client in yet"
                self._say(f"{self._server} does not {why}")
        if SUCCEEDED in line:
            if self._failures >= FAILURES and self._connected:
                self.trouble = ""
                self._report(f"{self._server} answers again")
            self._failures = 0
        if "SuperNode ID" in line and not self._connected:
            self._connected = True
            self.trouble = ""
            self._report(f"connected to {self._server}; waiting for a run")

    def _say(self, trouble: str) -> None:
        """Says once what keeps the client from its server."""
        if trouble != self.trouble:
            self.trouble = trouble
            self._report(f"{trouble}; trying again")

    def _explain(self, tail: list[str]) -> str:
        refusal = next((line for line in tail if NOT_ACTIVATED in line), None)
        if self._keys is not None and refusal is not None:
            if UNREGISTERED in refusal:
                return (
                    f"{self._server} refuses this client: its key is not registered there, or was "
                    f"revoked. Bring {self._keys.public} there and run {COMMAND} register "
                    f"key={self._keys.public.name}"
                )
            return (
                f"{self._server} refuses this client: one with its key is connected already. It "
                "is taken within a minute if it was killed a moment ago; if not, a second client "
                "has a copy of its key: stop that one"
            )
        if self._connected or self._gave_up:
            return f"the connection to {self._server} ended"
        start = next((i for i, line in enumerate(tail) if "Exit Code" in line), len(tail))
        reason = " ".join(line.strip() for line in tail[start + 1 : start + 3]) or "no reason given"
        return f"the SuperNode ended: {reason} (see {self._folder / 'supernode.log'})"
