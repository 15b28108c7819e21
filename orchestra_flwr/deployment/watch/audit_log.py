"""The audit log of a run: who joined, was refused, revoked or left, and what was released.

Each line holds the SHA-256 of itself and of the line before it, so that none can be changed,
removed or moved unnoticed by somebody who cannot write the whole rest anew. Whoever can is noticed
by the last digest, if that was recorded elsewhere.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from orchestra_flwr import __version__
from orchestra_flwr.console.text import counted
from orchestra_flwr.files import append_durably, read_whole_lines, write_atomically
from orchestra_flwr.fingerprints import file_sha256, fingerprint_of

if TYPE_CHECKING:  # orchestra-top, which reads logs, does without PyTorch
    from orchestra_flwr.deployment.server_config import ServerConfig
    from orchestra_flwr.reporting import RunFolder

FILE = "audit.jsonl"
END = "audit.end"  # number of lines and the last digest: shows what was cut off at the end
DIGEST = "sha256"
CHANGED = "changed"  # the event of a server that found its log changed
HOUR = 3600.0  # seconds
# Events that are written down in an hour, so that nobody fills a disk: of all strangers at the gate
# together, and of each client.
STRANGERS_AN_HOUR, CLIENT_AN_HOUR = 60, 12
LEFT_OUT = "left_out"  # in a line: how many events of which kind are missing before it


class AuditError(ValueError):
    """An audit log that was changed; its text names the first wrong line."""


class AuditLog:
    """Appends to a run's `audit.jsonl`, new or not; used from several threads.

    If the log cannot be written, a line is reported, and the run goes on.
    """

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._report = report
        self._lock = threading.Lock()
        self._hour_began = time.monotonic()
        self._in_this_hour: Counter[str] = Counter()  # events of a client, or of strangers under ""
        self._left_out: Counter[str] = Counter()  # by their kind, since the last line
        self._lines, self._last = 0, ""
        if not (folder / FILE).exists() and not (folder / END).exists():
            return
        try:
            with suppress(UnicodeDecodeError):  # a damaged line, which is named below
                read_whole_lines(folder / FILE)  # cuts off what a crash left half-written
            self._lines, self._last = check_audit(folder)
        except (AuditError, OSError) as error:  # no reason to end a run, but never forgotten
            report(f"warning: the audit log was changed: {error}")
            self._lines, self._last = _end_of(folder / FILE)
            self.add(CHANGED, line=str(error))

    def add(self, event: str, **values: Any) -> None:
        """Appends an event, which is on the disk when this returns."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with self._lock:
            entry = {"time": now, "event": event, **values}
            if self._left_out:
                entry[LEFT_OUT] = dict(self._left_out)
            digest = _chained(self._last, entry)
            line = json.dumps({**entry, DIGEST: digest}) + "\n"
            try:
                append_durably(self._folder / FILE, line.encode())
            except OSError as error:
                self._left_out[event] += 1
                self._report(f"warning: the audit log misses an event, {event}: {error}")
                return
            self._lines, self._last = self._lines + 1, digest
            self._left_out.clear()
            end = {"lines": self._lines, DIGEST: digest}
            try:
                write_atomically(self._folder / END, json.dumps(end).encode(), mode=0o600)
            except OSError as error:  # a check passes, as after a crash between the two
                self._report(
                    f"warning: the audit log has an event, {event}, that {END} does not count "
                    f"until the next one: {error}"
                )

    def member(self, event: str, name: str, detail: str) -> None:
        """Appends what a client did, unless it does it without end: then it is only counted."""
        if self._has_room(event, name, CLIENT_AN_HOUR):
            self.add(event, client=name, detail=detail)

    @contextmanager
    def of_run(self, config: "ServerConfig", folder: "RunFolder") -> Iterator[Self]:
        """Notes that a run begins or goes on, what comes of it (its encoders), and how it ended."""
        begun = "resumed" if config.resume else "began"
        digest = file_sha256(folder.path / "config.yaml")
        self.add(begun, run=folder.label, version=__version__, config=digest)
        try:
            yield self
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            self.add("ended", why="stopped" if stopped else str(error) or type(error).__name__)
            raise
        encoders = [folder.encoder, *sorted(folder.encoders.glob("*.safetensors"))]
        files = {file.name: file_sha256(file) for file in encoders if file.is_file()}
        self.add("released", encoders=files, rounds=config.federation.rounds)
        self.add("ended", why="done")

    def overhearing(self, report: Callable[[str], None]) -> Callable[[str], None]:
        """A function that passes on lines of gate and keys, noting who is listed or refused."""

        def overheard(line: str) -> None:
            report(line)
            event, _, rest = line.partition(": ")
            if event in ("registered", "revoked"):
                self.add(event, clients=rest.split(", "))
            elif event == "refused" and self._has_room("turned_away", "", STRANGERS_AN_HOUR):
                self.add("turned_away", line=rest)

        return overheard

    def _has_room(self, event: str, of: str, most: int) -> bool:
        """Whether an event is one of somebody's first in an hour; if not, counts it."""
        with self._lock:
            if (now := time.monotonic()) - self._hour_began >= HOUR:
                self._hour_began = now
                self._in_this_hour.clear()
            self._in_this_hour[of] += 1
            if self._in_this_hour[of] <= most:
                return True
            self._left_out[event] += 1
            return False


def check_audit(folder: Path) -> tuple[int, str]:
    """Checks all lines of a log, even while it is written; returns their number and last digest.

    Raises:
        AuditError: a line was changed, removed or moved, or there is no log.
        OSError: it cannot be read.
    """
    file = folder / FILE
    if not file.exists() and not (folder / END).exists():
        raise AuditError(
            f"{folder} has no {FILE}: the run folder of a server of real clients has one, and so "
            "has its queue"
        )
    try:  # read before the lines: a running server may add some meanwhile
        end = json.loads((folder / END).read_bytes())
        expected = (int(end["lines"]), str(end[DIGEST]))
    except (FileNotFoundError, ValueError, LookupError, TypeError, ArithmeticError):
        raise AuditError(f"{folder / END} is missing or damaged") from None
    try:
        lines = _lines_of(file)
    except FileNotFoundError:
        written = counted(expected[0], "line")
        raise AuditError(f"{file} is gone: by {END} it had {written}") from None
    last, digests = "", []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            digest = entry.pop(DIGEST)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise AuditError(f"{file}, line {number}: no entry of an audit log") from None
        last = _chained(last, entry)
        if line != json.dumps({**entry, DIGEST: last}).encode() or digest != last:
            raise AuditError(
                f"{file}, line {number}: it or a line before it was changed, removed or moved"
            )
        if entry.get("event") == CHANGED:
            found = f"{file}, line {number}: a start of the server found"
            raise AuditError(f"{found}: {entry.get('line')}")
        digests.append(last)
    if digests[expected[0] - 1 : expected[0]] != [expected[1]]:
        raise AuditError(f"{file}: {expected[0]} lines were written and {len(lines)} are there")
    return len(lines), last


def _end_of(file: Path) -> tuple[int, str]:
    """The number of lines and the last digest of a damaged log, as far as it has one."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        lines = _lines_of(file)
        return len(lines), str(json.loads(lines[-1])[DIGEST])
    return 0, ""


def _lines_of(file: Path) -> list[bytes]:
    return file.read_bytes().split(b"\n")[:-1]


def _chained(previous: str, entry: Mapping[str, Any]) -> str:
    return fingerprint_of(previous + json.dumps(entry), digits=64)
