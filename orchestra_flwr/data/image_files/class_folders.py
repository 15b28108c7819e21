"""Training and test images, and their classes, from the names of the folders they lie in."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from orchestra_flwr.data.image_files.archive import Archive, ImageFile, wrong_root
from orchestra_flwr.data.image_files.file_lists import Contents, FileList
from orchestra_flwr.printable import printable

logger = logging.getLogger("orchestra_flwr.data")

LAYOUT = "train/<class>/* and maybe test/<class>/*, <class>/*, or images without folders"


def survey(root: str) -> tuple[int, bool]:
    """How many training images there are below `root`, and whether they lie in class folders.

    Raises:
        ConfigError: the root is missing, empty or laid out otherwise.
    """
    path = Path(root).expanduser()
    with Archive(path) as archive:
        train = arrange(path, archive.files()).train
    return len(train.files), train.labels is not None


def arrange(root: Path, files: list[ImageFile]) -> Contents:
    """Tells training from test images, and the classes of both.

    Args:
        root: for messages.
        files: all image files below it.

    Returns:
        Training files, test files and the names of the classes, in the order of their folders
        (none without labels).

    Raises:
        ConfigError: there are no images, or they are laid out in another way than `LAYOUT`.
    """
    if not files:
        raise wrong_root(root, f"holds no images; expected {LAYOUT}")
    train, test = _splits(root, _without_outer_folders([(file.parts, file) for file in files]))
    names, test_names = _class_names(root, train), _class_names(root, test)
    if test and test_names is None:
        logger.warning("data.root=%s: test/ has no class folders and is left out", root)
        test = []
    classes = tuple(sorted(set(names or ())))
    unknown = sorted(set(test_names or ()) - set(classes))
    if unknown:
        raise wrong_root(root, f"test/{printable(unknown[0])} is no class of the training images")
    shown = tuple(map(printable, classes))
    return Contents(_file_list(train, names, classes), _file_list(test, test_names, classes), shown)


# Files with their paths, in parts, below the folder that is looked at.
Placed = list[tuple[tuple[str, ...], ImageFile]]


def _without_outer_folders(placed: Placed) -> Placed:
    """Looks inside a folder that holds everything, as zips have them; one class is no class."""
    while True:
        tops = {parts[0] for parts, _ in placed}
        if len(tops) > 1 or tops & {"train", "test"} or len(placed[0][0]) == 1:
            return placed
        placed = [(parts[1:], file) for parts, file in placed]


def _splits(root: Path, placed: Placed) -> tuple[Placed, Placed]:
    """Training and test files; without a folder train/ or test/ all files are for training."""
    tops = {parts[0] for parts, _ in placed if len(parts) > 1}
    if not tops & {"train", "test"}:
        return placed, []
    below = {
        split: [(parts[1:], file) for parts, file in placed if parts[0] == split and parts[1:]]
        for split in ("train", "test")
    }
    if not below["train"]:
        raise wrong_root(root, "holds test/ but no images in train/")
    others = len(placed) - len(below["train"]) - len(below["test"])
    if others:
        logger.warning("data.root=%s: %d images outside train/ and test/ left out", root, others)
    return below["train"], below["test"]


def _class_names(root: Path, placed: Placed) -> list[str] | None:
    """The class folder of each file; None where all files lie loose."""
    loose = [file.name for parts, file in placed if len(parts) == 1]
    if len(loose) == len(placed):
        return None
    if loose:
        raise wrong_root(
            root, f"mixes class folders and loose images ({printable(loose[0])}); expected {LAYOUT}"
        )
    return [parts[0] for parts, _ in placed]


def _file_list(placed: Placed, names: list[str] | None, classes: tuple[str, ...]) -> FileList:
    files = [file for _, file in placed]
    if names is None:
        return FileList(files, None)
    index = {name: position for position, name in enumerate(classes)}
    return FileList(files, torch.tensor([index[name] for name in names]))
