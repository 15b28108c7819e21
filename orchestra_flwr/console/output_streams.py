"""Standard output and error that may close, or not be read, while a run goes on.

A run takes hours, and its terminal or pipe may be closed before it ends. Python would then raise an
exception and the system would send SIGPIPE, or SIGHUP for a terminal; each would end the run.
"""

import atexit
import errno
import io
import logging
import os
import queue
import select
import signal
import sys
import threading
from contextlib import suppress
from typing import Any, TextIO

_log = logging.getLogger(__name__)
CLOSED = {errno.EPIPE, errno.EIO, errno.EBADF}  # a closed pipe, terminal, stream
MAX_WAITING = 10_000  # lines, of which a megabyte is enough for days
BURST_SECONDS = 0.1  # that the first one without room waits: a reader may be there
LAST_SECONDS = 2.0  # that the end of a process waits for who reads its last lines


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


def never_wait_for_readers() -> None:
    """From now on, a thread writes the lines, and whoever prints goes on at once.

    A terminal that is stopped by Ctrl-S, or a reader that hangs, would hold up a server's loop and
    so all its clients. Lines keep their order, across both streams. Where thousands wait, later
    ones are dropped, and a warning says how many once there is a reader again. The end of the
    process waits two seconds at most for what is not written yet. For streams that
    :func:`ignore_closed_streams` has opened.
    """
    files = {
        stream: stream.buffer.raw
        for stream in (sys.stdout, sys.stderr)
        if isinstance(stream, io.TextIOWrapper)
        and isinstance(stream.buffer, io.BufferedWriter)
        and isinstance(stream.buffer.raw, _LastingFile)
    }
    if not files:
        return
    lines = _WaitingLines()
    for file in files.values():
        file.lines = lines

    def finish() -> None:
        for stream in files:
            stream.flush()
        if lines.are_written():
            for file in files.values():  # the thread ends before those that may still print
                file.lines = None

    atexit.register(finish)


class _LastingFile(io.FileIO):
    """A file that discards what cannot be written."""

    lines: "_WaitingLines | None" = None  # None: whoever writes waits for the reader
    _fails = False

    def write(self, data: Any, /) -> int:
        """The number of bytes written, or discarded."""
        if self.lines is None:
            return self.write_now(data)
        self.lines.put(self, bytes(data))
        return memoryview(data).nbytes

    def write_now(self, data: Any) -> int:
        """As :meth:`write`, and waits for a slow reader."""
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


class _WaitingLines:
    """Writes to several files, in the order in which it is asked to, from a thread of its own."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[_LastingFile, bytes]] = queue.Queue(MAX_WAITING)
        self._lock = threading.Lock()  # of those that print
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="output", daemon=True)
        self._thread.start()

    def put(self, file: _LastingFile, data: bytes) -> None:
        """Has `data` written; drops it where too much waits, and until that is written."""
        is_note = threading.current_thread() is self._thread
        with self._lock:
            if is_note or not self._dropped:
                with suppress(queue.Full):
                    self._queue.put((file, data), timeout=BURST_SECONDS)
                    return
            self._dropped += max(1, data.count(b"\n"))

    def are_written(self) -> bool:
        """Whether nothing waits any more, at once or after a few seconds."""
        done = self._queue.all_tasks_done
        with done:
            return done.wait_for(lambda: not self._queue.unfinished_tasks, LAST_SECONDS)

    def _write(self) -> None:
        while True:
            file, data = self._queue.get()
            while data:
                data = data[file.write_now(data) :]
            if self._dropped and self._queue.empty():
                dropped = self._dropped
                # By way of the log, whose lines are JSON where all lines are.
                _log.warning("%d lines were not shown: nobody read the output", dropped)
                with self._lock:  # from now on, others' lines come behind this one
                    self._dropped -= dropped
            self._queue.task_done()


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
