"""The regular files below a folder, each once, however many links lead to it."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

FIRST = ("train", "test")  # walked first, so that links in them count and their targets do not


class Walk(NamedTuple):
    """What is below a folder."""

    # Status of the wanted files, by their paths below the folder, with slashes.
    files: dict[str, os.stat_result]
    again: int  # how many files and folders were met again
    unread: dict[str, str]  # reasons by path, of folders and links that cannot be read


def regular_files(root: Path, wanted: Callable[[str], bool]) -> Walk:
    """The files below a folder that are wanted by their paths below it.

    Links are followed. A file or folder that is reached by several paths counts at the first one:
    in train/, in test/, then in the order of the names. Circular links therefore end, and nothing
    counts twice. Pipes, sockets, devices and names that begin with a dot are left out.
    """
    files: dict[str, os.stat_result] = {}
    unread: dict[str, str] = {}
    seen: set[tuple[int, int]] = set()
    again = 0
    paths = [""]  # below the root, the next one last
    while paths:
        path = paths.pop()
        try:
            status = (root / path).stat()
        except OSError as error:  # a link that leads nowhere, or to itself
            unread[path] = str(error.strerror)
            continue
        is_folder = stat.S_ISDIR(status.st_mode)
        if not is_folder and not (stat.S_ISREG(status.st_mode) and wanted(path)):
            continue
        identity = status.st_dev, status.st_ino
        if identity in seen:
            again += 1
            continue
        seen.add(identity)
        if not is_folder:
            files[path] = status
            continue
        try:
            paths += reversed(_visible(root, path))
        except OSError as error:
            unread[path] = str(error.strerror)
    return Walk(files, again, unread)


def is_hidden(name: str) -> bool:
    """Whether a file or folder is hidden by its name."""
    return name.startswith(".") or name == "__MACOSX"


def _visible(root: Path, folder: str) -> list[str]:
    """The paths in a folder, in the order of the walk."""
    names = [p.name for p in (root / folder).iterdir() if not is_hidden(p.name)]
    names.sort(key=lambda name: (name not in FIRST, name != FIRST[0], name))
    return [f"{folder}/{name}" if folder else name for name in names]
