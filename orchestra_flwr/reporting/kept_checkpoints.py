"""The last checkpoints of a run: the latest one, and those of earlier rounds under their numbers.

    checkpoint/state.safetensors       the latest
    checkpoint/state-11.safetensors    after round 11
    checkpoint/state-10.safetensors    after round 10

A checkpoint is written once: the latest gets its number as a second name (a hard link) before the
next one takes its place.
"""

import json
import os
import re
import shutil
from pathlib import Path

from orchestra_flwr.config import KEPT_ROUNDS
from orchestra_flwr.files import replacing, sync_folder
from orchestra_flwr.tensor_files import read_values

LATEST = "state.safetensors"


def earlier_path(folder: Path, round_: int) -> Path:
    """Where a round's checkpoint is when it is no longer the latest."""
    return folder / f"state-{round_}.safetensors"


def earlier_rounds(folder: Path) -> list[int]:
    """The rounds whose checkpoints are kept under their numbers, ascending."""
    names = (
        re.fullmatch(r"state-(\d+)\.safetensors", path.name) for path in folder.glob("state-*")
    )
    return sorted(int(name[1]) for name in names if name)


def round_of(path: Path) -> int:
    """After which round a checkpoint was written.

    Raises:
        OSError: the file is missing or cannot be read.
        DamagedFileError: it is not as it was written.
    """
    return int(json.loads(read_values(path)["position"])["round"])


def keep_latest(folder: Path, round_: int) -> None:
    """Keeps the latest checkpoint, of this round, when the next one takes its place.

    Raises:
        OSError: names the file that cannot be written.
    """
    if (folder / LATEST).is_file():
        _second_name(folder / LATEST, earlier_path(folder, round_))


def drop_old(folder: Path, latest: int) -> None:
    """Removes all but the last checkpoints."""
    for round_ in earlier_rounds(folder):
        if not latest - KEPT_ROUNDS < round_ < latest:
            earlier_path(folder, round_).unlink()


def make_latest(folder: Path, round_: int) -> None:
    """Makes the checkpoint of an earlier round the latest, and removes those after it.

    Raises:
        OSError: names the file that cannot be written.
    """
    passing = folder / f".{LATEST}.{round_}.tmp"
    _second_name(earlier_path(folder, round_), passing)
    passing.replace(folder / LATEST)
    sync_folder(folder)
    for later in earlier_rounds(folder):
        if later >= round_:
            earlier_path(folder, later).unlink()


def _second_name(path: Path, name: Path) -> None:
    name.unlink(missing_ok=True)
    try:
        os.link(path, name)
    except OSError:  # not every file system has links
        with replacing(name) as temporary:
            shutil.copyfile(path, temporary)
