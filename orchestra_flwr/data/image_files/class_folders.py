"""Training and test images, and their classes, from the names of the folders they lie in."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.image_files.archive import Archive, ImageFile, wrong_root
from orchestra_flwr.data.image_files.file_lists import Contents, FileList
from orchestra_flwr.data.images import UNLABELLED
from orchestra_flwr.files import at_home

logger = logging.getLogger("orchestra_flwr.data")

LAYOUT = (
    "train/<class>/* and maybe test/<class>/*, <class>/*, or images without folders, which have "
    "no label"
)
SPLIT_FOLDERS = {"train", "test"}
# How others call train/ and test/, in any case.
SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}


def survey(root: str) -> tuple[int, int]:
    """How many training images there are below `root`, and how many of them in class folders.

    Raises:
        ConfigError: the root is missing, empty or laid out otherwise.
    """
    path = at_home(root)
    with Archive(path) as archive:
        train = arrange(path, archive.files()).train
    labelled = 0 if train.labels is None else int((train.labels != UNLABELLED).sum())
    return len(train.files), labelled


def class_folders(files: list[ImageFile]) -> list[str | None]:
    """The class folder of each file by the rules of :func:`arrange`, None where it lies in none.

    Folders that hold everything are no classes, nor are train/ and test/; folders inside of a class
    folder are part of it.
    """
    placed = _without_outer_folders([(file.parts, file) for file in files])
    if any(parts[0] in SPLIT_FOLDERS for parts, _ in placed):
        placed = [(parts[1:] if parts[0] in SPLIT_FOLDERS else (), file) for parts, file in placed]
    return [parts[0] if len(parts) > 1 else None for parts, _ in placed]


def arrange(root: Path, files: list[ImageFile]) -> Contents:
    """Tells training from test images, and the classes of both.

    Args:
        root: for messages.
        files: all image files below it.

    Returns:
        Training files, test files and the names of the classes, in the order of their folders
        (none without labels). Training images beside class folders have no label.

    Raises:
        ConfigError: there are no images, or they are laid out in another way than `LAYOUT`.
    """
    if not files:
        raise wrong_root(root, f"holds no images; expected {LAYOUT}")
    train, test = _splits(root, _without_outer_folders([(file.parts, file) for file in files]))
    names, test_names = _class_names(train), _class_names(test)
    if test_names is not None and None in test_names:
        raise wrong_root(root, "has images in test/ that lie in no class folder")
    if test and test_names is None:
        logger.warning("data.root=%s: test/ has no class folders and is left out", root)
        test = []
    if names is not None and (loose := names.count(None)):
        logger.warning(
            "data.root=%s: %d of %d images lie in no class folder, so they have no label",
            root, loose, len(names),
        )  # fmt: skip
    classes = tuple(sorted({name for name in names or () if name is not None}))
    unknown = sorted({name for name in test_names or () if name is not None} - set(classes))
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
        if len(tops) != 1 or tops & SPLIT_FOLDERS or len(placed[0][0]) == 1:
            return placed
        placed = [(parts[1:], file) for parts, file in placed]


def _splits(root: Path, placed: Placed) -> tuple[Placed, Placed]:
    """Training and test files; without a folder train/ or test/ all files are for training.

    Raises:
        ConfigError: there are test images but none for training, or both have other names: they
            would be classes, and test images trained on.
    """
    tops = {parts[0] for parts, _ in placed if len(parts) > 1}
    if not tops & SPLIT_FOLDERS:
        nested = any(len(parts) > 2 for parts, _ in placed)
        if nested and SPLITS.issuperset(name.casefold() for name in tops):
            named = " and ".join(f"{name}/" for name in sorted(tops))
            raise wrong_root(
                root, f"holds {named}, but must call training images train/ and test images test/"
            )
        return placed, []
    below = {
        split: [(parts[1:], file) for parts, file in placed if parts[0] == split and parts[1:]]
        for split in ("train", "test")
    }
    if not below["train"]:
        raise wrong_root(root, "holds test/ but no images in train/")
    others = len(placed) - len(below["train"]) - len(below["test"])
    if others:
        hint = "" if below["test"] else "; test images must lie in test/, not in val/"
        logger.warning(
            "data.root=%s: %d images outside train/ and test/ left out%s", root, others, hint
        )
    return below["train"], below["test"]


def _class_names(placed: Placed) -> list[str | None] | None:
    """The class folder of each file, None where it lies loose; None where all files do."""
    names = [parts[0] if len(parts) > 1 else None for parts, _ in placed]
    return None if all(name is None for name in names) else names


def _file_list(
    placed: Placed, names: list[str | None] | None, classes: tuple[str, ...]
) -> FileList:
    files = [file for _, file in placed]
    if names is None:
        return FileList(files, None)
    index: dict[str | None, int] = {name: position for position, name in enumerate(classes)}
    index[None] = UNLABELLED
    return FileList(files, torch.tensor([index[name] for name in names]))
