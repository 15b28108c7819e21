"""A few labels, as people write them: a CSV of paths, or a folder for each class."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.image_files.archive import ImageFile
from orchestra_flwr.data.image_files.class_folders import class_folders
from orchestra_flwr.files import at_home

COLUMNS = ("path", "label")
FEWEST = 5  # images of a class: as many as there are folds of cross-validation


def is_table(labels: str) -> bool:
    """Whether `labels=` names a CSV, and not a folder or zip of class folders."""
    return Path(labels).suffix.lower() in (".csv", ".tsv")


def read_table(labels: str) -> dict[str, str]:
    """The label of each path in a CSV with the columns `path` and `label`.

    A file that ends with .tsv is separated by tabs. Other columns are ignored.

    Raises:
        ConfigError: the file cannot be read, lacks a column, or has a line without a path or
            label, or with a second label for one path.
    """
    path = at_home(labels)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise ConfigError(f"labels={labels}: cannot be read ({reason})") from None
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    # Not splitlines, which also divides at separators that names of files may hold.
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        columns = reader.fieldnames or ()
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:  # a quote that is never closed, for example
        raise ConfigError(f"labels={labels}: cannot be read ({error})") from None
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise ConfigError(
            f"labels={labels}: has no column {missing[0]}; its first line must name the columns "
            "path and label"
        )
    found: dict[str, str] = {}
    for line, row in rows:
        name, label = ((row[column] or "").strip() for column in COLUMNS)
        if not name or not label:
            raise ConfigError(f"labels={labels}: line {line} has no path or no label")
        name = printable(name)
        if found.setdefault(name, printable(label)) != printable(label):
            raise ConfigError(f"labels={labels}: line {line}: {name} has two labels")
    return found


def labels_by_folder(labels: str, files: list[ImageFile]) -> dict[str, str]:
    """The class folder of each image file, by the path of the file.

    Raises:
        ConfigError: an image lies in no class folder.
    """
    found = {}
    for file, name in zip(files, class_folders(files), strict=True):
        if name is None:
            raise ConfigError(
                f"labels={labels}: {printable(file.name)} lies in no class folder; expected "
                "<class>/*, with at least two classes"
            )
        found[printable(file.name)] = printable(name)
    return found


def check_known(labels: str, named: Mapping[str, str], images: str, known: set[str]) -> None:
    """Refuses labels of images that are not there or cannot be read.

    Raises:
        ConfigError: names the first one.
    """
    unknown = [name for name in named if name not in known]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ConfigError(
            f"labels={labels}: {unknown[0]}{more} cannot be found or read in images={images}; "
            "paths must be as they stand below it"
        )


def check_enough(labels: str, named: Mapping[str, str]) -> None:
    """Refuses too few classes, or too few images of one.

    Raises:
        ConfigError: says which class, and how many it needs.
    """
    counts = Counter(named.values())
    if len(counts) < 2:
        raise ConfigError(f"labels={labels}: must hold at least two classes, not {len(counts)}")
    name, count = min(counts.items(), key=lambda item: item[1])
    if count < FEWEST:
        raise ConfigError(
            f"labels={labels}: class {name} has {count} labelled images, at least {FEWEST} are "
            "needed (20 and more are better)"
        )
