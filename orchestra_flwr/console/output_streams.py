"""Standard output and error that may be closed, or end, while the work goes on.

A run takes hours; the terminal, the pipe or the disk that takes its lines may not last that long.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

NOBODY_READS = {errno.EPIPE, errno.EIO, errno.EBADF}  # a pipe, a terminal, a stream that is closed


def outlast_output() -> None:
    """From here on a line that cannot be written is dropped, with all that follow; nobody fails.

    Streams that are closed already lead nowhere, so that no file that is opened later takes their
    place. Streams that somebody has put in the place of the process's own are left alone.
    """
    for descriptor in (0, 1, 2):
        _occupy(descriptor)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lasting(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lasting(sys.stderr, 2)


class _LastingFile(io.FileIO):
    """A file that leads nowhere once it cannot be written."""

    def write(self, data: Any, /) -> int:
        """All of `data` counts as written, whatever happens to it."""
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left:
                written = super().write(left)
                if written is None:  # the reader is slow, and the stream does not wait for it
                    select.select([], [self.fileno()], [])
                left = left[written or 0 :]
        except OSError as error:
            self._end(error)
        return size

    def _end(self, error: OSError) -> None:
        _lead_nowhere(self.fileno())
        if error.errno not in NOBODY_READS and self.fileno() == 1:
            print(f"warning: the output ends here: {error.strerror}", file=sys.stderr)


def _lasting(stream: TextIO | None, descriptor: int) -> TextIO:
    if stream is not None:
        _flush(stream, descriptor)
    buffered = io.BufferedWriter(_LastingFile(descriptor, "wb", closefd=False))
    return io.TextIOWrapper(
        buffered,
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",  # a file name may hold what the encoding does not
        line_buffering=descriptor == 2 or _is_prompt(stream),
    )


def _is_prompt(stream: TextIO | None) -> bool:
    """Whether lines are to appear at once: on a terminal, or with PYTHONUNBUFFERED."""
    return isinstance(stream, io.TextIOWrapper) and (stream.write_through or stream.isatty())


def _flush(stream: TextIO, descriptor: int) -> None:
    try:
        stream.flush()
    except OSError:
        _lead_nowhere(descriptor)


def _occupy(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        _lead_nowhere(descriptor)


def _lead_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    os.set_inheritable(descriptor, True)
