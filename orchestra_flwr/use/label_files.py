"""A few labels, as people provide them: a CSV of paths, or a folder for each class."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from zipfile import is_zipfile

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.image_files.archive import ImageFile
from orchestra_flwr.data.image_files.class_folders import class_folders
from orchestra_flwr.data.image_files.file_table import read_file_table, values_by_file
from orchestra_flwr.files import at_home

MIN_IMAGES = 5  # images of a class: as many as there are folds of cross-validation


def is_table(labels: str) -> bool:
    """Whether `labels=` names a CSV, and not a folder or zip of class folders.

    Raises:
        ConfigError: it is a file that is neither, or a CSV with another ending.
    """
    if Path(labels).suffix.lower() in (".csv", ".tsv"):
        return True
    file = at_home(labels)
    if file.is_file() and file.suffix.lower() != ".zip" and not is_zipfile(file):
        raise ConfigError(
            f"labels={labels}: must be a folder or zip of class folders, or a CSV whose name ends "
            "in .csv or .tsv"
        )
    return False


def read_table(labels: str) -> dict[str, str]:
    """The label of each path in a CSV with the columns `path` and `label`, as they are printed.

    A path with an empty cell has no label, as in a table of training images.

    Raises:
        ConfigError: as :func:`~orchestra_flwr.data.image_files.file_table.read_file_table`.
    """
    table = read_file_table("labels", labels, ("path", "label"), may_lack=True)
    return {printable(path): printable(label) for path, label in table.items()}


def labels_by_folder(labels: str, files: list[ImageFile]) -> dict[str, str]:
    """The class folder of each image file, by the path of the file.

    Raises:
        ConfigError: an image is in no class folder.
    """
    labels_by_path = {}
    for file, name in zip(files, class_folders(files), strict=True):
        if name is None:
            raise ConfigError(
                f"labels={labels}: {printable(file.name)} is in no class folder; expected "
                "<class>/*, with at least two classes"
            )
        labels_by_path[printable(file.name)] = printable(name)
    return labels_by_path


def known_labels(
    labels: str, named: Mapping[str, str], images: str, known: set[str]
) -> dict[str, str]:
    """The labels of a table by the images' own names, which may be written a little differently.

    Raises:
        ConfigError: names the first image that does not exist, or one with two labels.
    """
    found = values_by_file(f"labels={labels}", "label", named, known)
    unknown = [name for name in found if name not in known]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ConfigError(
            f"labels={labels}: {unknown[0]}{more} cannot be found in images={images}; "
            "paths must be relative to it"
        )
    return found


def check_enough(labels: str, named: Mapping[str, str]) -> None:
    """Refuses too few classes, or too few images of one.

    Raises:
        ConfigError: says which class, and how many it needs.
    """
    counts = Counter(named.values())
    if len(counts) < 2:
        raise ConfigError(f"labels={labels}: must hold at least two classes, not {len(counts)}")
    name, count = min(counts.items(), key=lambda item: item[1])
    if count < MIN_IMAGES:
        raise ConfigError(
            f"labels={labels}: class {name} has {count} labelled images, at least {MIN_IMAGES} are "
            "needed (20 and more are better)"
        )
