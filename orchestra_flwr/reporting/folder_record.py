"""What a checkpoint remembers of the other files in its run folder, and whether they still fit.

A run that is resumed beside another configuration, or without some of its records, would end in
results that belong to neither run. `sha256sum` would read all of a growing file after each round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestra_flwr.config import (
    MAY_GROW,
    RESUME_MAY_CHANGE,
    ConfigError,
    read_config_file,
)
from orchestra_flwr.reporting.kept_checkpoints import EARLIER_VALUES, LATEST
from orchestra_flwr.tensor_files import DamagedFileError, read_values

CHECKPOINT = f"checkpoint/{LATEST}"
VALUE = "folder"  # the name of the record in the checkpoint
# Files that only grow; after a kill they may hold more than the checkpoint has seen.
GROWING = ("metrics.jsonl", "checkpoint/releases.jsonl")
FIXED = ("checkpoint/run.id", "checkpoint/noise.key")
REMOVED_AT_THE_END = "checkpoint/noise.key"
ENDED = "summary.json"
MOST_NAMED = 5  # differences in one message
FREE = (*RESUME_MAY_CHANGE, "run_dir", "resume", "resume_round")


class FolderRecord:
    """Describes a run folder, time and again while it grows.

    Args:
        folder: it holds the `config.yaml` with which the run was started.

    Raises:
        ConfigError: `config.yaml` is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = read_config_file(folder / "config.yaml")
        self._growing = {name: _Prefix(folder / name) for name in GROWING}

    def to_json(self) -> str:
        """The folder as it is now, for the checkpoint.

        Raises:
            OSError: a file cannot be read.
        """
        found = {name: prefix.extended() for name, prefix in self._growing.items()}
        found |= {name: _Prefix(self._folder / name).extended() for name in FIXED}
        files = {name: entry for name, entry in found.items() if entry}
        return json.dumps({"config": self._config, "files": files}, default=str)


def check_folder(folder: Path, checkpoint: str = CHECKPOINT) -> None:
    """Refuses a run folder that was changed or damaged behind a checkpoint, mostly the latest.

    One with a checkpoint of an earlier version passes, and so does one without any, unless the run
    had one: it would begin anew, and lose the records and the encoder that are there.

    Raises:
        ConfigError: one line; what differs, and what to do.
        OSError: a file cannot be read.
    """
    path = folder / checkpoint
    if not path.is_file():
        if (folder / ENDED).exists() or _lines(folder / "metrics.jsonl") > 1:
            raise ConfigError(
                f"{path} was removed, and without it the run cannot go on; put it back, "
                f"or start a new run, which may begin with this one's encoder (init={folder})"
            )
        return
    try:
        record = read_values(path, earlier=EARLIER_VALUES).get(VALUE)
    except DamagedFileError as error:
        raise ConfigError(f"{error}; put back a copy of it, or start a new run") from None
    if record is None:
        return
    saved = json.loads(record)
    _check_config(folder / "config.yaml", saved["config"])
    for name, entry in saved["files"].items():
        if name == REMOVED_AT_THE_END and (folder / ENDED).exists():
            continue
        wrong = _difference(folder / name, entry, grows=name in GROWING)
        if wrong:
            raise ConfigError(
                f"{folder / name} {wrong} since the checkpoint; put back what it held, "
                "or start a new run"
            )


class _Prefix:
    """The digest of a file that only grows; what was read once is not read again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = self._lines = 0
        self._digest = hashlib.sha256()

    def extended(self) -> dict[str, Any]:
        """Bytes, lines and digest of all there is now; empty where there is no file."""
        if not self._path.is_file():
            return {}
        with self._path.open("rb") as file:
            file.seek(self._bytes)
            self._add(file.read())
        return self.entry

    def _add(self, data: bytes) -> None:
        self._bytes += len(data)
        self._lines += data.count(b"\n")
        self._digest.update(data)

    @property
    def entry(self) -> dict[str, Any]:
        return {"bytes": self._bytes, "lines": self._lines, "sha256": self._digest.hexdigest()}


def _lines(path: Path) -> int:
    """A run that is killed after its first line may have no checkpoint yet."""
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _difference(path: Path, entry: Mapping[str, Any], *, grows: bool) -> str:
    """What has happened to a file since its record was made; "" where it fits."""
    if not path.is_file():
        return "was removed"
    data = path.read_bytes()
    if grows and len(data) < entry["bytes"]:
        left = data.count(b"\n")
        return f"was cut to {left} of {entry['lines']} records"
    seen = data[: entry["bytes"]] if grows else data
    return "" if hashlib.sha256(seen).hexdigest() == entry["sha256"] else "was changed"


def _check_config(file: Path, saved: Mapping[str, Any]) -> None:
    before, now = dict(_flat(saved)), dict(_flat(read_config_file(file)))
    changes = [
        f"{key} {_shown(before, key)} -> {_shown(now, key)}"
        for key in dict.fromkeys([*before, *now])
        if (key in before, before.get(key)) != (key in now, now.get(key))
        and not _is_free(key)
        and not (key == MAY_GROW and _grows(before, now))
    ]
    if changes:
        more = len(changes) - MOST_NAMED
        named = ", ".join(changes[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        raise ConfigError(
            f"{file} was changed since the checkpoint: {named}; put the old values back, "
            "or start a new run"
        )


def _grows(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether there are to be more rounds, which leaves those that there were as they are."""
    old, new = before.get(MAY_GROW), now.get(MAY_GROW)
    constant = now.get("schedule.name", "constant") == "constant"
    return constant and isinstance(old, int) and isinstance(new, int) and new > old


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Full keys with their values."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], default=str) if key in values else "(none)"


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE)
