"""Training and test images and their classes, by the names of folders."""

import logging
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import counted
from orchestra_flwr.data.image_files.archive import Archive, ImageFile, wrong_root
from orchestra_flwr.data.image_files.image_rows import Contents, Rows
from orchestra_flwr.data.images import UNLABELLED
from orchestra_flwr.files import at_home

logger = logging.getLogger("orchestra_flwr.data")

LAYOUT = (
    "train/<class>/* and maybe test/<class>/*, <class>/*, or images without folders, which have "
    "no label"
)
SPLIT_FOLDERS = {"train", "test"}
# Other common names of train/ and test/, in any letter case.
SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}


def survey(root: str) -> tuple[int, int, int]:
    """Training images below `root`, how many of them in class folders, and test images.

    It warns of nothing, unless it refuses: that is left to whoever reads the images.

    Raises:
        ConfigError: the root is missing, empty or laid out otherwise.
    """
    path = at_home(root)
    with Archive(path) as archive:
        files, left_out = archive.found()
        try:
            contents, _ = _arranged(path, archive, files)
        except ConfigError:
            archive.warn(left_out)  # which may be the reason
            raise
    train = contents.train
    labelled = 0 if train.targets is None else int((train.targets != UNLABELLED).sum())
    return len(train.names), labelled, len(contents.test.names) if contents.test else 0


def class_folders(files: list[ImageFile]) -> list[str | None]:
    """The class folder of each file by the rules of :func:`arrange`; None if it is in none.

    A folder that holds everything is no class, and neither are train/ and test/; folders in a class
    folder are part of it.
    """
    placed = _without_outer_folders([(file.parts, file) for file in files])
    if any(parts[0] in SPLIT_FOLDERS for parts, _ in placed):
        placed = [(parts[1:] if parts[0] in SPLIT_FOLDERS else (), file) for parts, file in placed]
    return [name for _, name in _with_classes(placed)]


def arrange(root: Path, archive: Archive) -> Contents:
    """Divides the files of an archive into training and test images, and by class.

    Files that it leaves out, or that get no label, are counted in warnings.

    Returns:
        Training files, test files and the names of the classes, in the order of their folders
        (none without labels). Training images beside class folders have no label.

    Raises:
        ConfigError: there are no images, or their folders are not as `LAYOUT` says.
    """
    contents, problems = _arranged(root, archive, archive.files())
    for problem in problems:
        logger.warning("data.root=%s: %s", root, problem)
    return contents


def _arranged(root: Path, archive: Archive, files: list[ImageFile]) -> tuple[Contents, list[str]]:
    """What :func:`arrange` returns, and what it warns of."""
    problems: list[str] = []
    if not files:
        raise wrong_root(root, f"holds no images; expected {LAYOUT}")
    placed = _without_outer_folders([(file.parts, file) for file in files])
    train, test = map(_with_classes, _splits(root, placed, problems))
    names, test_names = ([name for _, name in part] for part in (train, test))
    if any(test_names) and None in test_names:
        raise wrong_root(root, "has images in test/ that lie in no class folder")
    if test and not any(test_names):
        problems.append("test/ has no class folders and is left out")
        test = []
    if any(names) and (loose := names.count(None)):
        problems.append(
            f"{loose} of {len(names)} images lie in no class folder, so they have no label"
        )
    classes = tuple(sorted(filter(None, {*names})))
    unknown = sorted({*filter(None, test_names)} - {*classes})
    if unknown:
        raise wrong_root(root, f"test/{printable(unknown[0])} is no class of the training images")
    shown = tuple(map(printable, classes))
    tested = Rows.of_files(archive, test, classes) if test else None
    return Contents(Rows.of_files(archive, train, classes), tested, shown), problems


# Files with the parts of their paths below the current folder.
Placed = list[tuple[tuple[str, ...], ImageFile]]


def _without_outer_folders(placed: Placed) -> Placed:
    """Removes folders that hold everything, as in many zips; so a single class is no class."""
    while True:
        tops = {parts[0] for parts, _ in placed}
        if len(tops) != 1 or tops & SPLIT_FOLDERS or len(placed[0][0]) == 1:
            return placed
        placed = [(parts[1:], file) for parts, file in placed]


def _splits(root: Path, placed: Placed, problems: list[str]) -> tuple[Placed, Placed]:
    """Training and test files; without a folder train/ or test/ all files are for training.

    Files that are left out are added to `problems`.
    """
    tops = {parts[0] for parts, _ in placed if len(parts) > 1}
    if not tops & SPLIT_FOLDERS:
        # Folders of other names would be taken for classes, and test images for training images.
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
        left_out = counted(others, "image")
        problems.append(f"left out {left_out} outside train/ and test/{hint}")
    return below["train"], below["test"]


def _with_classes(placed: Placed) -> list[tuple[ImageFile, str | None]]:
    """Files with their class folders, None for a file in no folder."""
    return [(file, parts[0] if len(parts) > 1 else None) for parts, file in placed]
