"""A temporary folder for one process, which the next start removes if the process was killed."""

import fcntl
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestra_flwr.config import ConfigError

PREFIX = "orchestra-"
MARK = ".scratch"  # a file in each: users have folders of their own whose names begin so
MAX_PATH = 107 if sys.platform == "linux" else 103  # bytes that a socket's path may have


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder below the system's temporary one, which only its owner may enter.

    Its path is short, because sockets lie in it, and says nothing about this machine. The folder is
    removed with the block. The system releases its lock however a process ends, so that folders of
    killed processes are found; they are removed here first. The lock is on the folder itself, since
    then systemd-tmpfiles, which removes what nobody touched for days, leaves it alone.

    Raises:
        OSError: it cannot be made.
    """
    for mark in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{MARK}"):
        with suppress(OSError):  # another process may remove it, too
            _remove_if_abandoned(mark.parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks, on which nothing is removed either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / MARK).touch()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def check_room_for(socket: str) -> None:
    """Checks that a socket can have its path, which is `socket` below a scratch folder.

    Raises:
        ConfigError: the system's temporary folder has too long a path itself.
    """
    parent = tempfile.gettempdir()
    longest = MAX_PATH - len(f"/{PREFIX}12345678/{socket}")
    if len(os.fsencode(parent)) > longest:
        raise ConfigError(
            f"TMPDIR={parent}: must have at most {longest} bytes, since sockets lie below it; "
            "set it to a shorter folder, such as TMPDIR=/tmp"
        )


def flower_folders(scratch: Path) -> dict[str, str]:
    """Environment variables that keep the files of Flower's programs in a scratch folder.

    Elsewhere the files would outlive the programs. Besides, a path of the user's home could become
    part of an error that Flower sends.
    """
    return {"FLWR_HOME": str(scratch / "flwr"), "TMPDIR": str(scratch)}


def _remove_if_abandoned(folder: Path) -> None:
    """Removes a folder of this user's; an OSError where it is locked, or gone."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
