"""A folder or a zip file of images: which there are, and their content."""

from __future__ import annotations

import os
import zipfile
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data.image_files.decoding import check_size

PHOTOS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
SUFFIXES = frozenset((*PHOTOS, ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".jp2"))


@dataclass(frozen=True)
class ImageFile:
    """An image file of an archive.

    Attributes:
        name: its path below the archive's root, with slashes.
        stamp: size and time (or checksum in a zip), which differ when its content does.
    """

    name: str
    stamp: tuple[int, int]

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders that it lies in, then its own name."""
        return PurePosixPath(self.name).parts


class Archive(AbstractContextManager["Archive"]):
    """A folder or a zip file of images.

    Raises:
        ConfigError: there is none at `root`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._zip: zipfile.ZipFile | None = None
        if not root.exists():
            raise wrong_root(root, "does not exist")
        if root.is_dir():
            return
        try:
            self._zip = zipfile.ZipFile(root)
        except (zipfile.BadZipFile, OSError) as error:
            raise wrong_root(root, f"must be a folder or a zip file ({error})") from None

    def __exit__(self, *error: object) -> None:
        if self._zip is not None:
            self._zip.close()

    def files(self) -> list[ImageFile]:
        """All image files, sorted by path; hidden ones and other files are left out."""
        found = self._in_folder() if self._zip is None else self._in_zip(self._zip)
        return sorted((file for file in found if _is_image(file)), key=lambda file: file.name)

    def read(self, name: str) -> bytes:
        """A file's content.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is empty, or far too large for an image.
        """
        if self._zip is None:
            path = self._root / name
            check_size(path.stat().st_size)
            return path.read_bytes()
        member = self._zip.getinfo(name)
        check_size(member.file_size)
        return self._zip.read(member)

    def _in_folder(self) -> list[ImageFile]:
        found = []
        for folder, _, names in os.walk(self._root, followlinks=True):
            for path in (Path(folder, name) for name in names):
                with suppress(OSError):  # a dangling link
                    status = path.stat()
                    name = path.relative_to(self._root).as_posix()
                    found.append(ImageFile(name, (status.st_size, status.st_mtime_ns)))
        return found

    def _in_zip(self, archive: zipfile.ZipFile) -> list[ImageFile]:
        members = (member for member in archive.infolist() if not member.is_dir())
        return [ImageFile(member.filename, (member.file_size, member.CRC)) for member in members]


def wrong_root(root: Path, what: str) -> ConfigError:
    """The error for a `data.root` that cannot be used."""
    return ConfigError(f"data.root={root}: {what}")


def _is_image(file: ImageFile) -> bool:
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in file.parts)
    return not hidden and PurePosixPath(file.name).suffix.lower() in SUFFIXES
