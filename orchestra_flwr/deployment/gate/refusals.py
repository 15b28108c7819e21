"""Reports to the operator of what was turned away: one a minute for the same peer and reason."""

import asyncio
import time
from collections.abc import Callable

QUIET_SECONDS = 60.0
MAX_REASONS = 1000
MAX_LINE = 300


class Refusals:
    """Writes a line at once, and counts its repetitions for the next minute.

    Lines begin with "refused: ", unless they are no more than notes; they are written from the
    thread of the event loop, which `write` must not hold up.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        # By peer and kind: the last line since one was written, its time, and how many there were.
        self._recent: dict[tuple[str, str], tuple[str, str, int]] = {}

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
            self._recent[key] = line, time.strftime("%H:%M:%S"), self._recent[key][2] + 1
        else:
            self._write_line(key, line)

    def close(self) -> None:
        """Writes what is still only counted."""
        for last, when, times in self._recent.values():
            if times:
                self._write(_counted(last, when, times))
        self._recent.clear()

    def _write_line(self, key: tuple[str, str], line: str) -> None:
        self._write(line)
        self._recent[key] = "", "", 0
        asyncio.get_running_loop().call_later(QUIET_SECONDS, self._repeat, key)

    def _repeat(self, key: tuple[str, str]) -> None:
        last, when, times = self._recent.pop(key, ("", "", 0))
        if times:
            self._write_line(key, _counted(last, when, times))


def _counted(line: str, when: str, times: int) -> str:
    # It is written up to a minute later: by then the cause may be mended.
    more = f", and {times - 1} like it within a minute" if times > 1 else ""
    return f"{line} (at {when}{more})"
