"""Locking a folder for one process at a time, on all machines that share its disk.

The library filelock cannot hand a lock on to a child process, as a server does to its Flower app.
"""

import fcntl
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

logger = logging.getLogger(__name__)

LOCK = ".lock"


class FolderInUseError(RuntimeError):
    """Another process has locked the folder; the text is its process number and host."""


@contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[IO[bytes]]:
    """Locks a folder for the block.

    The kernel holds the lock (flock) as long as a process has the yielded file open, so a killed
    process leaves no lock. The file stays, empty while it is not locked. On a file system without
    locks a warning is logged and nothing is locked.

    Yields:
        The locked file, which holds the owner's process and host. A child process that inherits its
        descriptor holds the lock as well.

    Raises:
        FolderInUseError: another process has it.
        OSError: the file cannot be opened.
    """
    path = folder / name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUseError(_owner(file)) from None
        except OSError as error:
            logger.warning(
                "%s cannot be locked (%s): make sure that no second process writes there",
                path,
                error.strerror,
            )
        _write(file, f"{os.getpid()} {platform.node()}\n")
        try:
            yield file
        finally:
            _write(file, "")


def is_locked(folder: Path) -> bool:
    """Whether a process has locked the folder; nothing is locked or written to find out.

    Raises:
        OSError: the lock cannot be read.
    """
    try:
        with (folder / LOCK).open("rb") as file:
            # A held lock has a name in it; a request could hinder a process that takes it now.
            if not file.read(1):
                return False
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _owner(file: IO[bytes]) -> str:
    text = file.read(300).decode(errors="replace").strip()
    number, _, host = text.partition(" ")
    if not number.isdecimal() or not host.isprintable():  # the owner is starting or ending
        return "another process"
    return f"process {number} on host {host}"


def _write(file: IO[bytes], text: str) -> None:
    with suppress(OSError):  # the lock holds on a full disk as well, only without a name
        file.seek(0)
        file.truncate()
        file.write(text.encode())
