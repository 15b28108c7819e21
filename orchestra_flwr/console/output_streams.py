"""Standard output and error that may be closed, or end, while the work goes on.

A run takes hours; the terminal, the pipe or the disk that takes its lines may not last that long.
Python's own answer to that is an exception, and the system's is SIGPIPE: either would end the run.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

NOBODY_READS = {errno.EPIPE, errno.EIO, errno.EBADF}  # a pipe, a terminal, a stream that is closed


def ignore_closed_streams() -> None:
    """From here on a line that cannot be written is dropped, with all that follow; nobody fails.

    Streams that are closed already lead nowhere, so that no file that is opened later takes their
    place. Streams that somebody has put in the place of the process's own are left alone.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            _lead_nowhere(descriptor)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lasting(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lasting(sys.stderr, 2)


class _LastingFile(io.FileIO):
    """A file that leads nowhere once it cannot be written."""

    def write(self, data: Any, /) -> int:
        """Bytes that count as written: all of them, once nothing can be written."""
        try:
            while (written := super().write(data)) is None:
                select.select([], [self.fileno()], [])  # the reader is slow, and no write waits
            return written
        except OSError as error:
            _lead_nowhere(self.fileno())
            if error.errno not in NOBODY_READS and self.fileno() == 1:
                print(f"warning: the output ends here: {error.strerror}", file=sys.stderr)
            return memoryview(data).nbytes


def _lasting(stream: TextIO | None, descriptor: int) -> TextIO:
    at_once = descriptor == 2
    if isinstance(stream, io.TextIOWrapper):
        at_once |= stream.write_through or stream.isatty()  # PYTHONUNBUFFERED, or a terminal
        try:
            stream.flush()
        except OSError:
            _lead_nowhere(descriptor)
    return io.TextIOWrapper(
        io.BufferedWriter(_LastingFile(descriptor, "wb", closefd=False)),
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",  # a file name may hold what the encoding does not
        line_buffering=at_once,
    )


def _lead_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    os.set_inheritable(descriptor, True)
