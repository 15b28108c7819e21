"""Writing files that a crash, a kill or a full disk cannot leave half-written."""

import errno
import glob
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 2**24  # partition.json has some four for each client and class
# A name that a stranger chose and that is written to the disk: it leads nowhere else, does not fill
# the disk, and is read back as it was.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ABANDONED = 3600  # seconds since the last write, after which a temporary file is removed


def write_atomically(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replaces `path` in one step: it holds the old bytes or the new ones, never a part.

    Its permissions are `mode`, 0o600 for a secret; None: those of any new file.

    Raises:
        OSError: names `path`; what was there before is still there.
    """
    with replacing(path, mode=mode) as temporary:
        temporary.write_bytes(data)


def write_new(path: Path, data: bytes) -> None:
    """Writes a file that is not there yet in one step: a reader sees all of it or none.

    Raises:
        OSError: names `path`; a FileExistsError where it is there, which then stays as it is.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with naming(path):
        try:
            write_atomically(temporary, data)
            name_new(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def name_new(temporary: Path, path: Path) -> None:
    """Gives a complete file its name; FileExistsError if it is taken, or another OSError."""
    # A link fails where the name is taken, a rename would replace what is there.
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without links (FAT, some network shares)
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        temporary.rename(path)


@contextmanager
def replacing(path: Path, *, mode: int | None = None) -> Iterator[Path]:
    """Replaces `path` in one step by what the block writes, for libraries that write to a path.

    Example:
        with replacing(file) as temporary:
            save_file(tensors, temporary)

    The block gets an empty file in the same folder. After the block the file is synchronised with
    the disk and renamed to `path`; of several writers the last one wins. After an error it is
    removed. A killed process leaves it, and a write to `path` an hour later removes it.

    Args:
        path: the file. The temporary one has another suffix: name the format to a library.
        mode: permissions from the start, 0o600 for a secret; None: those of any new file.

    Raises:
        OSError: names `path`; what was there before is still there.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with naming(path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        created = os.fstat(descriptor)
        os.close(descriptor)
        try:
            _remove_abandoned(path, created.st_mtime)
            yield temporary
            # A library may have replaced the file, as safetensors does by one of its owner's alone.
            permissions = stat.S_IMODE(created.st_mode) if mode is None else mode
            if stat.S_IMODE(temporary.stat().st_mode) != permissions:
                temporary.chmod(permissions)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):  # must not hide the reason
                temporary.unlink()
            raise
        sync_folder(path.parent)


def append_durably(path: Path, data: bytes) -> None:
    """Appends lines to a file, all or none, and waits until they are on the disk.

    A missing file is created, for its owner alone. An incomplete last line is removed first: an
    append that failed on a broken disk could not do it.

    Raises:
        OSError: names `path`; the file is as before, or if it cannot even be cut, ends in lines of
            `data` or a part of one.
    """

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    with naming(path), open(path, "a+b", buffering=0, opener=opened) as file:
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            file.seek(0)
            size = file.truncate(file.readall().rfind(b"\n") + 1)
        if size == 0:
            sync_folder(path.parent)
        try:
            written = 0
            while written < len(data):
                written += file.write(data[written:])
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise


def read_whole_lines(path: Path) -> list[str]:
    """The lines that :func:`append_durably` wrote; none without a file.

    An incomplete last line, from a crash while it was written, is removed from the file.

    Raises:
        OSError: the file cannot be read or cut.
    """
    if not path.exists():
        return []
    whole, _, torn = path.read_bytes().rpartition(b"\n")
    if torn:
        os.truncate(path, path.stat().st_size - len(torn))
    return whole.decode().split("\n") if whole else []


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The object in a JSON file, which may be a stranger's: not more than `max_bytes` are read.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger, or holds no JSON object; the message names it.
    """
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path}: has more than {max_bytes:,} bytes")
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: must hold a JSON object")
    return values


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replaces `path` by a JSON object with letters of all languages; NaN and infinity become null.

    Raises:
        OSError: names `path`; what was there before is still there.
    """
    text = json.dumps(finite(values), indent=2, ensure_ascii=False) + "\n"
    # A byte of a file's name that is not UTF-8 becomes an escape of JSON.
    write_atomically(path, text.encode(errors="backslashreplace"))


def finite(value: Any) -> Any:
    """A copy with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def at_home(path: str | os.PathLike[str]) -> Path:
    """A path with the home folder instead of a leading `~`, as in a shell.

    Without such a user or home folder it stays as it is: a file may have this name.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path's own raises an error there)


def encoder_file(path: str | os.PathLike[str]) -> Path:
    """The encoder's file, given by its own path or its run folder."""
    named = at_home(path)
    return named if named.suffix == ".safetensors" else named / "encoder.safetensors"


def beside_package(name: str) -> Path:
    """A folder of files that are no code: inside an installed package, in a checkout beside it."""
    package = Path(__file__).resolve().parent
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def make_private_folder(folder: Path) -> None:
    """Makes a folder that its owner alone may enter, unless it exists; parents are not private.

    Raises:
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def folder_name(name: str) -> str:
    """Escapes a name, which may be "a/b" or "..", to the name of one folder.

    Different names stay different: % is %25 and / is %2F; "." is %2E, ".." is %2E%2E, and "" is %.
    """
    special = {"": "%", ".": "%2E", "..": "%2E%2E"}
    return special.get(name) or name.replace("%", "%25").replace("/", "%2F")


@contextmanager
def private_umask() -> Iterator[None]:
    """Makes private all files and folders that this process and its children make in the block."""
    previous = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(previous)


def sync_folder(folder: Path) -> None:
    """Synchronises a folder with the disk, as far as the file system can: a rename is durable."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Makes errors of the block name `path`, instead of no file or a temporary one.

    Raises:
        OSError: as in the block, with the reason and `path`.
    """
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # it has its own text
            raise
        reason = os.strerror(error.errno) if error.errno else error.strerror
        raise OSError(error.errno, f"cannot be written ({reason})", str(path)) from error


def _remove_abandoned(path: Path, now: float) -> None:
    # `now` is a time of the file system: the clocks of machines that share it may differ.
    for file in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):  # another process may have removed it
            if file.stat().st_mtime < now - ABANDONED:
                file.unlink()
