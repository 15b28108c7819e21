"""Processes that are started, found by what they do, disturbed, and ended by their ids."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from proc import descendants, processes

ROOT = Path(__file__).parents[2]
PR_SET_CHILD_SUBREAPER = 36
# What a command line holds, for each kind of process below a server, a client or a simulation.
ROLES = {
    "superlink": "flower-superlink",
    "app": "processes.federation_app",
    "supernode": "flower-supernode",
    "worker": "ray::ClientAppActor",
    "raylet": "/raylet/raylet",
    "gcs": "gcs_server",
}


class Command:
    """A program with its output in a file.

    Args:
        arguments: of this Python.
        log: the file, which is continued where it exists.
        environment: variables beside those of this process.
    """

    def __init__(
        self, arguments: Sequence[object], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.log = log
        self._begin = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, **environment},
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self.process.poll()

    @property
    def lines(self) -> list[str]:
        """What this process, and what it started, has written."""
        return self.log.read_bytes()[self._begin :].decode(errors="replace").splitlines()

    def has(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def end(self, seconds: float = 40) -> int | None:
        """Asks it to end; its exit code, or None if it had to be killed."""
        if self.code is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def wait_for(happened: Callable[[], object], seconds: float, pause: float = 0.05) -> bool:
    """Whether it happened in time."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def adopt_orphans() -> None:
    """Makes this process the parent of all that its descendants leave behind (Linux).

    So an orphan is found however it was started, and nobody else's process is taken for one.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def command_line(pid: int) -> str:
    """Its arguments; "" where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return text.replace(b"\0", b" ").decode(errors="replace").strip()


def role_of(pid: int) -> str | None:
    """The kind of process, one of ROLES; None for another one."""
    line = command_line(pid)
    return next((role for role, text in ROLES.items() if text in line), None)


def having_role(root: int, role: str) -> list[int]:
    """Ids of the processes of a kind below another."""
    return [pid for pid in descendants(root) if role_of(pid) == role]


def left_over(roots: Sequence[Command], seconds: float = 60) -> list[str]:
    """Command lines of processes that outlive what started them; they are killed at last.

    Args:
        roots: what still runs; these and their descendants are left alone.
        seconds: how long the others may take to end.
    """
    this_process = os.getpid()
    pids = [root.pid for root in roots]

    def remaining() -> list[int]:
        _reap(pids)
        allowed = {*pids, *(descendant for pid in pids for descendant in descendants(pid))}
        return [pid for pid in descendants(this_process) if pid not in allowed]

    if wait_for(lambda: not remaining(), seconds, pause=0.2):
        return []
    orphans = [(pid, command_line(pid)) for pid in remaining()]
    for pid, _ in orphans:
        send(pid, signal.SIGKILL)
    wait_for(lambda: not remaining(), 10)
    return [line for _, line in orphans if line]


def send(pid: int, number: int) -> bool:
    """Whether the signal could be sent."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _reap(allowed: Sequence[int]) -> None:
    """Takes the exit codes of adopted processes; those of `allowed` are waited for elsewhere."""
    for pid, state, parent in processes():
        if state == "Z" and parent == os.getpid() and pid not in allowed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
