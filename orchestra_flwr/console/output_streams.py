"""Standard output and error that may close while a run goes on.

A run takes hours, and its terminal or pipe may be closed before it ends. Python would then raise an
exception and the system would send SIGPIPE, or SIGHUP for a terminal; each would end the run.
"""

import errno
import io
import os
import select
import signal
import sys
from typing import Any, TextIO

CLOSED = {errno.EPIPE, errno.EIO, errno.EBADF}  # a closed pipe, terminal, stream


def ignore_closed_streams() -> None:
    """From now on, drops lines that cannot be written, without an error, and ignores SIGHUP.

    Of a closed stream these are all that follow, on a full disk those until there is room again.
    Streams that are already closed are opened on /dev/null, so that no file takes their descriptor.
    Replaced `sys.stdout` and `sys.stderr` are left alone.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            _discard(descriptor)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lasting(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lasting(sys.stderr, 2)


class _LastingFile(io.FileIO):
    """A file that discards what cannot be written."""

    _fails = False

    def write(self, data: Any, /) -> int:
        """The number of bytes written, or discarded."""
        try:
            while (written := super().write(data)) is None:
                select.select([], [self.fileno()], [])  # the reader is slow, and no write waits
            self._fails = False
            return written
        except OSError as error:
            failed_before, self._fails = self._fails, True
            if error.errno in CLOSED:
                _discard(self.fileno())
            elif self.fileno() == 1 and not failed_before:
                print(f"warning: lines of the output are lost: {error.strerror}", file=sys.stderr)
            return memoryview(data).nbytes


def _lasting(stream: TextIO | None, descriptor: int) -> TextIO:
    at_once = descriptor == 2
    if isinstance(stream, io.TextIOWrapper):
        at_once |= stream.write_through or stream.isatty()  # PYTHONUNBUFFERED, or a terminal
        try:
            stream.flush()
        except OSError as error:
            if error.errno in CLOSED:
                _discard(descriptor)
    return io.TextIOWrapper(
        io.BufferedWriter(_LastingFile(descriptor, "wb", closefd=False)),
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",  # a file name may hold what the encoding does not
        line_buffering=at_once,
    )


def _discard(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    os.set_inheritable(descriptor, True)
