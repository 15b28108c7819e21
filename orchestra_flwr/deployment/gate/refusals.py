"""Reports to the operator of what was turned away: one a minute for the same peer and reason."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

QUIET_SECONDS = 60.0
MAX_REASONS = 1000
MAX_LINE = 300


@dataclass
class _Repetitions:
    """Lines of one peer and kind since one was written: the last, how many, whether all alike."""

    line: str = ""
    times: int = 0
    alike: bool = True

    def add(self, line: str) -> None:
        self.alike = self.alike and (not self.times or line == self.line)
        self.line, self.times = line, self.times + 1

    def __str__(self) -> str:
        if self.times == 1:
            return self.line
        more = f"and {self.times - 1} like it within a minute"
        count = f"{self.times} times" if self.alike else more
        return f"{self.line} ({count})"


class Refusals:
    """Writes a line at once, and counts its repetitions for the next minute.

    Lines begin with "refused: ", unless they are no more than notes; they are written from the
    thread of the event loop.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._recent: dict[tuple[str, str], _Repetitions] = {}

    def report(self, peer: str, reason: str, text: str) -> None:
        """Reports what `peer` was turned away for; arguments as of :meth:`note`."""
        self.note(peer, reason, text, "refused: ")

    def note(self, peer: str, reason: str, text: str, beginning: str = "") -> None:
        """Reports what is no reason for alarm.

        Args:
            peer: its address; "" where it has none.
            reason: the kind of refusal: lines of one peer and kind count as the same.
            text: goes on after the peer's address; may hold what a stranger sent.
            beginning: of the line.
        """
        line = f"{peer}: {text}" if peer else text
        # A stranger's bytes shall not forge lines of the log, nor fill it.
        line = "".join(c if c.isprintable() else "?" for c in line[:MAX_LINE])
        key = (peer, reason)
        if key not in self._recent and len(self._recent) >= MAX_REASONS:
            key = ("", "")
            line = f"more than {MAX_REASONS} peers are turned away, the last is {line}"
        line = beginning + line
        if key in self._recent:
            self._recent[key].add(line)
        else:
            self._write_line(key, line)

    def close(self) -> None:
        """Writes what is still only counted."""
        for repetitions in self._recent.values():
            if repetitions.times:
                self._write(str(repetitions))
        self._recent.clear()

    def _write_line(self, key: tuple[str, str], line: str) -> None:
        self._write(line)
        self._recent[key] = _Repetitions()
        asyncio.get_running_loop().call_later(QUIET_SECONDS, self._repeat, key)

    def _repeat(self, key: tuple[str, str]) -> None:
        repetitions = self._recent.pop(key, _Repetitions())
        if repetitions.times:
            self._write_line(key, str(repetitions))
