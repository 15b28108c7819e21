"""Images in class folders, or in one flat folder without labels; on disk or in a zip."""

from __future__ import annotations

import logging
import os
import zipfile
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.data.cache import cache_dir, cached, fingerprint
from orchestra_flwr.data.fit import Decoded, check_size, fit_files
from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.data.subset import balanced_subset

logger = logging.getLogger("orchestra_flwr.data")

PHOTOS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
SUFFIXES = frozenset((*PHOTOS, ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".jp2"))
LAYOUT = "train/<class>/* and maybe test/<class>/*, <class>/*, or images without folders"


@dataclass(frozen=True)
class Entry:
    """An image file: its path inside the root, and what changes when its content does."""

    name: str
    stamp: tuple[int, int]

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders that it lies in, and its own name."""
        return PurePosixPath(self.name).parts


class Archive(AbstractContextManager["Archive"]):
    """A folder or a zip file of images."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._zip: zipfile.ZipFile | None = None
        if not root.exists():
            raise _wrong(root, "does not exist")
        if root.is_dir():
            return
        try:
            self._zip = zipfile.ZipFile(root)
        except (zipfile.BadZipFile, OSError) as error:
            raise _wrong(root, f"must be a folder or a zip file ({error})") from None

    def __exit__(self, *error: object) -> None:
        if self._zip is not None:
            self._zip.close()

    def entries(self) -> list[Entry]:
        """All image files, sorted by path; hidden ones and other files are left out."""
        found = self._files() if self._zip is None else self._members(self._zip)
        return sorted((e for e in found if _is_image(e)), key=lambda entry: entry.name)

    def read(self, name: str) -> bytes:
        """A file's content.

        Raises:
            ValueError: the file is far too large for an image.
        """
        if self._zip is None:
            path = self._root / name
            check_size(path.stat().st_size)
            return path.read_bytes()
        member = self._zip.getinfo(name)
        check_size(member.file_size)
        return self._zip.read(member)

    def _files(self) -> list[Entry]:
        found = []
        for folder, _, names in os.walk(self._root, followlinks=True):
            for path in (Path(folder, name) for name in names):
                with suppress(OSError):  # a dangling link
                    status = path.stat()
                    name = path.relative_to(self._root).as_posix()
                    found.append(Entry(name, (status.st_size, status.st_mtime_ns)))
        return found

    def _members(self, archive: zipfile.ZipFile) -> list[Entry]:
        members = (member for member in archive.infolist() if not member.is_dir())
        return [Entry(member.filename, (member.file_size, member.CRC)) for member in members]


@dataclass(frozen=True)
class Listing:
    """The files of a split, with the class of each unless they have none."""

    entries: list[Entry]
    labels: Tensor | None  # int64, (entries,)

    def limited(self, limit: int | None) -> Listing:
        """A class-balanced choice of at most `limit` files."""
        labels = None if self.labels is None else self.labels.numpy()
        chosen = balanced_subset(labels, len(self.entries), limit)
        kept = None if self.labels is None else self.labels[torch.from_numpy(chosen)]
        return Listing([self.entries[index] for index in chosen], kept)


def survey(root: str) -> tuple[int, bool]:
    """How many training images there are below `root`, and whether they lie in class folders.

    Raises:
        ConfigError: the root is missing, empty or laid out otherwise.
    """
    path = Path(root).expanduser()
    with Archive(path) as archive:
        train, _, _ = _arrange(path, archive.entries())
    return len(train.entries), train.labels is not None


def load_image_folder(config: DataConfig) -> Dataset:
    """The images below `data.root`, whatever their sizes, colour modes and formats.

    The limits choose from the file names, before anything is decoded.

    Raises:
        ConfigError: the root is not given, missing, empty or laid out otherwise, or no image can
            be read.
    """
    if not config.root:
        raise ConfigError("data.root must name a folder or a zip of images for data=image_folder")
    root = Path(config.root).expanduser()
    with Archive(root) as archive:
        train, test, classes = _arrange(root, archive.entries())
        train, test = train.limited(config.train_limit), test.limited(config.test_limit)
        key = fingerprint(
            config.image_size,
            classes,
            [[entry.name, *entry.stamp] for entry in train.entries],
            [[entry.name, *entry.stamp] for entry in test.entries],
        )

        def decode() -> Dataset:
            names = [entry.name for entry in train.entries + test.entries]
            decoded = fit_files(names, archive.read, config.image_size)
            if not decoded.good or decoded.good[0] >= len(train.entries):
                first = ": ".join(decoded.broken[0])
                raise _wrong(root, f"no training image can be read ({first})")
            return _dataset(train, test, classes, decoded)

        return cached(cache_dir(config.cache), "image_folder", key, decode)


def _dataset(train: Listing, test: Listing, classes: tuple[str, ...], decoded: Decoded) -> Dataset:
    images, broken = decoded.images, decoded.broken
    good = torch.tensor(decoded.good)
    count = int((good < len(train.entries)).sum())
    if train.labels is None:
        return Dataset("image_folder", ImageSet(images), None, broken)
    train_set = ImageSet(images[:count], train.labels[good[:count]], classes)
    if test.labels is None or count == len(good):
        return Dataset("image_folder", train_set, None, broken)
    test_labels = test.labels[good[count:] - len(train.entries)]
    test_set = ImageSet(images[count:], test_labels, classes)
    return Dataset("image_folder", train_set, test_set, broken)


def _arrange(root: Path, entries: list[Entry]) -> tuple[Listing, Listing, tuple[str, ...]]:
    """Train files, test files and the names of the classes."""
    if not entries:
        raise _wrong(root, f"holds no images; expected {LAYOUT}")
    placed = _unwrap([(entry.parts, entry) for entry in entries])
    train, test = _splits(root, placed)
    names, test_names = _class_names(root, train), _class_names(root, test)
    if test and test_names is None:
        logger.warning("data.root=%s: test/ has no class folders and is left out", root)
        test = []
    classes = tuple(sorted(set(names or ())))
    unknown = sorted(set(test_names or ()) - set(classes))
    if unknown:
        raise _wrong(root, f"test/{unknown[0]} is no class of the training images")
    return _listing(train, names, classes), _listing(test, test_names, classes), classes


Placed = list[tuple[tuple[str, ...], Entry]]  # a file's path below the folder that is looked at


def _unwrap(placed: Placed) -> Placed:
    """Leaves out folders that hold everything, as they come in zips; one class is no class."""
    while True:
        tops = {parts[0] for parts, _ in placed}
        if len(tops) > 1 or tops & {"train", "test"} or len(placed[0][0]) == 1:
            return placed
        placed = [(parts[1:], entry) for parts, entry in placed]


def _splits(root: Path, placed: Placed) -> tuple[Placed, Placed]:
    tops = {parts[0] for parts, _ in placed if len(parts) > 1}
    if not tops & {"train", "test"}:
        return placed, []
    below = {
        split: [(parts[1:], entry) for parts, entry in placed if parts[0] == split and parts[1:]]
        for split in ("train", "test")
    }
    if not below["train"]:
        raise _wrong(root, "holds test/ but no images in train/")
    others = len(placed) - len(below["train"]) - len(below["test"])
    if others:
        logger.warning("data.root=%s: %d images outside train/ and test/ left out", root, others)
    return below["train"], below["test"]


def _class_names(root: Path, placed: Placed) -> list[str] | None:
    """The class folder of each file; None where all files lie loose."""
    loose = [entry.name for parts, entry in placed if len(parts) == 1]
    if len(loose) == len(placed):
        return None
    if loose:
        raise _wrong(root, f"mixes class folders and loose images ({loose[0]}); expected {LAYOUT}")
    return [parts[0] for parts, _ in placed]


def _listing(placed: Placed, names: list[str] | None, classes: tuple[str, ...]) -> Listing:
    entries = [entry for _, entry in placed]
    if names is None:
        return Listing(entries, None)
    index = {name: position for position, name in enumerate(classes)}
    return Listing(entries, torch.tensor([index[name] for name in names]))


def _is_image(entry: Entry) -> bool:
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in entry.parts)
    return not hidden and PurePosixPath(entry.name).suffix.lower() in SUFFIXES


def _wrong(root: Path, what: str) -> ConfigError:
    return ConfigError(f"data.root={root}: {what}")
