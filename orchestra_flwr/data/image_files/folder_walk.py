"""The regular files below a folder, each once, whatever links lead to them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

FIRST = ("train", "test")  # a link in them counts, the folder that it leads to does not again


def regular_files(
    root: Path, wanted: Callable[[str], bool]
) -> tuple[dict[str, os.stat_result], int]:
    """The files that are wanted, by their paths below `root`, with slashes.

    Links are followed. A file or folder that is reached by several paths counts at the first one:
    in train/, in test/, then in the order of the names. So links that lead round in a circle end,
    and nothing counts twice. Pipes, sockets, devices and what begins with a dot are left out.

    Args:
        root: a folder.
        wanted: by the path below the root.

    Returns:
        The files with their status, and how many files and folders were met again.
    """
    found: dict[str, os.stat_result] = {}
    seen: set[tuple[int, int]] = set()
    again = 0
    paths = [""]  # below the root, the next one last
    while paths:
        path = paths.pop()
        try:
            status = (root / path).stat()
        except OSError:  # a link that leads nowhere, or to itself
            continue
        is_folder = stat.S_ISDIR(status.st_mode)
        if not is_folder and not (stat.S_ISREG(status.st_mode) and wanted(path)):
            continue
        identity = status.st_dev, status.st_ino
        if identity in seen:
            again += 1
            continue
        seen.add(identity)
        if is_folder:
            paths += reversed(_visible(root, path))
        else:
            found[path] = status
    return found, again


def is_hidden(name: str) -> bool:
    """Whether the name of a file or folder says that it is not meant for people."""
    return name.startswith(".") or name == "__MACOSX"


def _visible(root: Path, folder: str) -> list[str]:
    """The paths of what is in a folder, in the order in which they count."""
    try:
        names = [p.name for p in (root / folder).iterdir() if not is_hidden(p.name)]
    except OSError:  # as one that may not be read
        return []
    names.sort(key=lambda name: (name not in FIRST, name != FIRST[0], name))
    return [f"{folder}/{name}" if folder else name for name in names]
