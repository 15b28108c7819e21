"""Reading and writing key files: modes right from the start, nothing overwritten by chance."""

import logging
import os
import secrets
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.files import (
    make_private_folder,
    name_new,
    naming,
    sync_folder,
    write_atomically,
)

logger = logging.getLogger(__name__)

COMMAND = "orchestra-keys"
MAX_BYTES = 1 << 20  # bytes; no key or certificate comes near, a wrong path may well


class UnreadableError(ConfigError):
    """A file is there and cannot be read, which may pass."""


@dataclass(frozen=True)
class NewFile:
    """A file to be written: readable by its owner alone where it is private."""

    path: Path
    data: bytes
    private: bool = False
    replace: bool = False  # only a file that loses nothing may be replaced


def read(path: Path, remedy: str) -> bytes:
    """The bytes of a small file; `remedy` says how one that is missing is made.

    Raises:
        ConfigError: missing, no file or far too large; an :class:`UnreadableError`.
    """
    try:
        if path.is_fifo():  # to open it would wait for a writer
            raise ConfigError(f"{path} is a named pipe, no file: {remedy}")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: {remedy}") from None
    except OSError as error:
        kind = ConfigError if isinstance(error, IsADirectoryError) else UnreadableError
        raise kind(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is too large to be a key or a certificate")
    return data


def quoted(path: Path) -> str:
    """A path as it stands in a command that a person copies."""
    return shlex.quote(str(path))


def warn_if_open(path: Path) -> None:
    """Warns in the log where others may read a private key (a copy often may).

    A group may read a key that belongs to another user: so Kubernetes and systemd hand them out.
    """
    status = path.stat()
    open_to = 0o077 if status.st_uid == os.geteuid() else 0o007
    if status.st_mode & open_to:
        logger.warning("%s can be read by others: chmod 600 %s", path, quoted(path))


def write_all(files: Iterable[NewFile]) -> None:
    """Writes all files, each in one step, or none; makes folders (for their owner alone).

    All bytes are on the disk before the first file gets its name, so that a full disk is noticed
    in time. A file with `replace` comes last in `files`: it cannot be taken back.

    Raises:
        OSError: names the file; a FileExistsError where one is there and has no `replace`.
    """
    made: list[Path] = []
    staged: list[tuple[NewFile, Path]] = []
    try:
        for file in files:
            _make_folder(file.path.parent, made)
            temporary = file.path.with_name(f".{file.path.name}.{secrets.token_hex(4)}.tmp")
            made.append(temporary)
            with naming(file.path):
                write_atomically(temporary, file.data, mode=0o600 if file.private else 0o644)
            staged.append((file, temporary))
        for file, temporary in staged:
            with naming(file.path):
                if file.replace:
                    temporary.replace(file.path)
                else:
                    name_new(temporary, file.path)
                    made.append(file.path)
                    temporary.unlink(missing_ok=True)
            sync_folder(file.path.parent)
    except BaseException:
        for path in reversed(made):
            with suppress(OSError):  # what cannot be undone must not replace the reason
                if path.is_dir():
                    path.rmdir()
                else:
                    path.unlink()
        raise


def _make_folder(folder: Path, made: list[Path]) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent, made)
        with naming(folder):
            make_private_folder(folder)
        made.append(folder)
