"""A folder or a zip file of images: its image files and their content."""

import itertools
import logging
import os
import posixpath
import stat
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra_flwr import optional_formats
from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import counted, listed
from orchestra_flwr.data.image_files.folder_walk import is_hidden, regular_files
from orchestra_flwr.fingerprints import fingerprint_of
from orchestra_flwr.square_image import FORMATS, MAX_BYTES, check_size

logger = logging.getLogger("orchestra_flwr.data")

COMPARED = 16  # files of a folder whose content is part of its identity
WINDOWS = 0  # the number of the system that a zip was made on
ENCRYPTED = 1  # the flag of a zip's member
ABOVE = ".."  # in the path of a zip's member: the folder above
MISSING = {*optional_formats.SUFFIXES} - {*optional_formats.installed()}
NEED_LIBRARY = frozenset(itertools.chain(*(FORMATS[name] for name in MISSING)))
SUFFIXES = frozenset(itertools.chain(*FORMATS.values())) - NEED_LIBRARY
# Photographs of phones, clinics and cameras that cannot be decoded here.
UNDECODABLE = NEED_LIBRARY | {".dng", ".cr2", ".cr3", ".nef", ".arw"}
PHOTOGRAPHS = SUFFIXES | UNDECODABLE


@dataclass(frozen=True)
class ImageFile:
    """An image file of an archive."""

    name: str  # its path below the archive's root, with slashes
    # Size and time (in a zip: checksum), which differ between two versions of a file, but not
    # always between two files (:meth:`Archive.identity`).
    stamp: tuple[int, int]

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders around the file, then its name."""
        return _parts(self.name)


class Archive(AbstractContextManager["Archive"]):
    """A folder or a zip file of images.

    Args:
        root: where it is.
        key: the configuration key that names it, for messages.

    Raises:
        ConfigError: there is none at `root`.
    """

    def __init__(self, root: Path, key: str = "data.root") -> None:
        self._root = root
        self._zip: zipfile.ZipFile | None = None
        self._members: dict[str, zipfile.ZipInfo] = {}
        try:
            mode = root.stat().st_mode
            if stat.S_ISDIR(mode):
                os.scandir(root).close()  # an error if it may not be read
                return
        except FileNotFoundError:
            whence = "" if root.is_absolute() else ", as seen from the current folder"
            raise wrong_root(root, f"does not exist{whence}", key) from None
        except (OSError, ValueError) as error:
            raise wrong_root(root, f"cannot be read ({_cause(error)})", key) from None
        if not stat.S_ISREG(mode):  # a device or a pipe may never end
            what = "must be a folder or a zip file, not a device, pipe or socket"
            raise wrong_root(root, what, key)
        try:
            self._zip = zipfile.ZipFile(root)
        # The last two: a name that is not UTF-8, an unknown version.
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            what = f"must be a folder or a zip file ({_cause(error)})"
            raise wrong_root(root, what, key) from None
        self._members = {_slashed(member): member for member in self._zip.infolist()}

    def __exit__(self, *error: object) -> None:
        if self._zip is not None:
            self._zip.close()

    def files(self) -> list[ImageFile]:
        """All image files, each once, sorted by path; hidden ones and other files are left out.

        Photographs that are left out are counted in warnings.
        """
        images, problems = self.found()
        self.warn(problems)
        return images

    def found(self) -> tuple[list[ImageFile], list[str]]:
        """What :meth:`files` returns, and what it warns of."""
        problems: list[str] = []
        photos = self._in_folder(problems) if self._zip is None else self._in_zip(problems)
        images = [file for file in photos if _suffix(file.name) in SUFFIXES]
        if len(images) < len(photos):
            kinds = sorted({_suffix(file.name) for file in photos} & UNDECODABLE)
            left_out = counted(len(photos) - len(images), "photograph")
            problems.append(
                f"left out {left_out}, as the format cannot be read ({', '.join(kinds)}): "
                f"{_cure(kinds)}"
            )
        return sorted(images, key=lambda file: file.name), problems

    def warn(self, problems: Iterable[str]) -> None:
        """Logs what :meth:`found` says that images should be read without."""
        for problem in problems:
            logger.warning("%s: %s", self._root, problem)

    def read(self, name: str) -> bytes:
        """A file's content.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is empty, far too large for an image, or no longer a file.
        """
        if self._zip is None:
            return read_regular(self._root / name)
        member = self._members[name]
        if member.flag_bits & ENCRYPTED:
            raise OSError("encrypted; unpack the zip with its password, and give the folder")
        check_size(member.file_size)
        return self._zip.read(member)

    def identity(self, files: Sequence[ImageFile]) -> list[Any]:
        """Identifies these files, for the keys of cached results.

        Files of a zip are identified by the checksums of their content: a copy of the zip has the
        same identity. Files of a folder are identified by its path, their sizes and times, and the
        content of 16 of them: uncompressed images all have one size, files of a tar archive may all
        have one time, and one path may be a different folder in each container.

        Returns:
            Values that JSON can hold.
        """
        stamps = [[file.name, *file.stamp] for file in files]
        if self._zip is not None:
            return [stamps]
        compared = files[:: max(1, -(-len(files) // COMPARED))]
        contents = [self._content_fingerprint(file.name) for file in compared]
        return [str(self._root.resolve()), stamps, contents]

    def _content_fingerprint(self, name: str) -> str | None:
        """None for a file that cannot be read; decoding reports it."""
        try:
            return fingerprint_of(self.read(name))
        except (OSError, ValueError):
            return None

    def _in_folder(self, problems: list[str]) -> list[ImageFile]:
        files, again, unread = regular_files(self._root, _is_photograph)
        if again:
            problems.append(f"left out {counted(again, 'link')} to what is counted already")
        if unread:
            named = first_ones(unread.items())
            problems.append(f"left out, because they cannot be read: {named}")
        return [
            ImageFile(name, (status.st_size, status.st_mtime_ns)) for name, status in files.items()
        ]

    def _in_zip(self, problems: list[str]) -> list[ImageFile]:
        """Regular members: of those with one name the last, of those at one offset the first."""
        assert self._zip is not None
        placed: dict[int, ImageFile] = {}
        left_out: list[tuple[str, str]] = []
        for entry in self._zip.infolist():
            name = _slashed(entry)
            if self._members[name] is not entry and _is_photograph(name):
                left_out.append((name, "a later entry has the same name"))
        for name, member in sorted(self._members.items()):
            if name.endswith("/") or not _is_photograph(name):
                continue
            file = ImageFile(name, (member.file_size, member.CRC))
            if ABOVE in file.parts:
                left_out.append((name, "its path has .."))
            elif stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
                left_out.append((name, "a link, or no regular file"))
            elif placed.setdefault(member.header_offset, file) is not file:
                left_out.append((name, "another entry has the same content"))
        if left_out:
            count = "1 entry" if len(left_out) == 1 else f"{len(left_out):,} entries"
            problems.append(f"left out {count} of the zip: {first_ones(left_out)}")
        return list(placed.values())


def _cure(suffixes: Sequence[str]) -> str:
    needing = sorted(NEED_LIBRARY.intersection(suffixes))
    install = f"{optional_formats.INSTALL} reads {', '.join(needing)}; else " if needing else ""
    return f"{install}convert them to JPEG"


def first_ones(reasons: Iterable[tuple[str, str]]) -> str:
    """For a warning: the first few of (path, reason), and how many more there are."""
    return listed([f"{printable(path)}: {reason}" for path, reason in reasons], separator="; ")


def wrong_root(root: Path, what: str, key: str = "data.root") -> ConfigError:
    """The error for a `data.root` that cannot be used."""
    return ConfigError(f"{key}={root}: {what}")


def _is_photograph(name: str) -> bool:
    """Whether a path is a photograph's and not hidden by a leading dot."""
    hidden = (is_hidden(part) for part in _parts(name) if part != ABOVE)
    return _suffix(name) in PHOTOGRAPHS and not any(hidden)


# Strings, since paths of pathlib take a second for every 100,000 files.
def _parts(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.split("/") if part not in ("", "."))


def _suffix(name: str) -> str:
    return posixpath.splitext(name)[1].lower()


def _slashed(member: zipfile.ZipInfo) -> str:
    """A member's path; PowerShell's Compress-Archive has written backslashes on Windows."""
    name = member.filename
    return name.replace("\\", "/") if member.create_system == WINDOWS else name


def read_regular(path: Path) -> bytes:
    """The content of an image file, which may be a stranger's choice: never of a pipe or device.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no regular file, is empty, or is far too large for an image.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        check_size(status.st_size)
        return file.read(MAX_BYTES)


def _cause(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
