"""Child processes that end with their parent, with their output in a log of bounded size."""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

NO_PROXY = ("no_proxy", "NO_PROXY")  # variables: hosts to which no proxy leads, "*" for all
STOP_SECONDS = 10.0
LOG_BYTES = 2_000_000
# Linux ends the child when its parent has ended, in whatever way; elsewhere a killed parent
# leaves it running. The child's own code cannot do it: it is Flower's.
_BOUND = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Child:
    """A running program whose output goes to a log file.

    Args:
        command: its name is looked up beside this Python first, where Flower's programs are.
        environment: variables beside those of this process.
        log: the file to which output is appended, after a line with the time; it grows to a few
            megabytes.
        on_line: takes every line of output.
        inherited: file descriptors that it inherits, under the same numbers.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        on_line: Callable[[str], None] = lambda line: None,
        inherited: Sequence[int] = (),
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=40)
        self._lines = 0
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-S", "-c", _BOUND, str(os.getpid()), *command],
            env=child_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=inherited,
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends the child
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def progress(self) -> tuple[int, str]:
        """A value that changes as long as it writes lines or, on Linux, uses the processor."""
        used = ""
        with suppress(OSError):
            status = Path(f"/proc/{self.pid}/stat").read_text()
            used = " ".join(status.rpartition(")")[2].split()[11:13])  # utime and stime
        return self._lines, used

    @property
    def returncode(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def tail(self) -> list[str]:
        """The last lines of its output; complete once it has ended."""
        if self.returncode is not None:
            self._reader.join(timeout=2)
        return list(self._tail)

    def stop(self) -> None:
        """Asks it to end, and kills it after ten seconds."""
        if self.returncode is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(timeout=2)

    def _read(self) -> None:
        handler = _PrivateLog(self.log, maxBytes=LOG_BYTES, backupCount=1, delay=True)
        began = f"{time.strftime('%Y-%m-%d %H:%M:%S')} process {self.pid} begins"
        handler.emit(logging.makeLogRecord({"msg": began}))
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.rstrip("\n")
            self._tail.append(text)
            self._lines += 1
            handler.emit(logging.makeLogRecord({"msg": text}))
            self._on_line(text)
        handler.close()


class _PrivateLog(RotatingFileHandler):
    """A log that only its owner may read: it holds addresses and names of others.

    On a full disk the program goes on without its log, and without a traceback for every line.
    """

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Ignores the error."""

    def close(self) -> None:
        """As usual, but what cannot be written is lost."""
        with suppress(OSError):
            super().close()

    def _open(self) -> TextIOWrapper:
        def opened(name: str, flags: int) -> int:
            return os.open(name, flags, 0o600)

        file = open(self.baseFilename, self.mode, encoding=self.encoding, opener=opened)  # noqa: SIM115
        assert isinstance(file, TextIOWrapper)
        return file


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, in which Flower's programs are found first and are quiet.

    They talk to this machine and to the server's gate alone, and no proxy leads there: one that the
    environment names is for the internet, and does not know what listens on 127.0.0.1.
    """
    beside = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # as -P: nothing is imported from the folder where we were started
        **dict.fromkeys(NO_PROXY, "*"),
        "PATH": os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]),
        **variables,
    }


def accepts(socket_path: Path) -> bool:
    """Whether somebody listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(socket_path)) == 0
