"""Writing files that a crash, a kill or a full disk cannot leave half-written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replaces `path` in one step: it holds the old bytes or the new ones, never a part.

    Args:
        path: the file.
        data: its new bytes.
        mode: its permissions, 0o600 for a secret; None: those of any new file.

    Raises:
        OSError: names `path`; what was there before is still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _naming(path):
        try:
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666 if mode is None else mode
            )
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def append_durably(path: Path, data: bytes) -> None:
    """Appends all of `data` and waits until it is on the disk.

    Raises:
        OSError: names `path`; what was there before is still there, and nothing else.
    """
    with _naming(path), path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            _sync_folder(path.parent)
        try:
            written = 0
            while written < len(data):
                written += file.write(data[written:])
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise


def read_whole_lines(path: Path) -> list[str]:
    """The lines that :func:`append_durably` wrote, none where there is no file.

    A last one that a crash cut off was never on the disk when somebody acted on it; it is removed,
    so that the next one starts a line.

    Raises:
        OSError: the file cannot be read or cut.
    """
    if not path.exists():
        return []
    whole, _, torn = path.read_bytes().rpartition(b"\n")
    if torn:
        os.truncate(path, path.stat().st_size - len(torn))
    return whole.decode().splitlines()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    # Errors of write and fsync (a full disk) do not say which file they struck.
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"cannot be written ({reason})", str(path)) from error


def _sync_folder(folder: Path) -> None:
    # Only then does a rename survive a power cut. Not every file system can do it.
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
