"""What a checkpoint remembers of the other files in its run folder, and whether they still fit.

A run that is resumed beside another configuration, or without some of its records, would end in
results that belong to neither run.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra_flwr.config import MAY_GROW, RESUME_MAY_CHANGE, ConfigError, read_config_file
from orchestra_flwr.config.section import within
from orchestra_flwr.console.text import flat, listed, lookup
from orchestra_flwr.plugins import changed, codes_of
from orchestra_flwr.reporting.kept_checkpoints import LATEST, earlier_rounds
from orchestra_flwr.tensor_files import DamagedFileError, read_values

CHECKPOINT = f"checkpoint/{LATEST}"
VALUE = "folder"  # the name of the record in the checkpoint
# Files that only grow; after a kill they may hold more than the checkpoint has seen.
METRICS = "metrics.jsonl"  # a line for each round
GROWING = (METRICS, "checkpoint/releases.jsonl")
FIXED = ("checkpoint/run.id", "checkpoint/noise.key")
FROZEN = "checkpoint/frozen"  # files named by their digest, with which they are compared when read
REMOVED_AT_THE_END = "checkpoint/noise.key"
ENDED = "summary.json"
FREE = (*RESUME_MAY_CHANGE, "run_dir", "resume", "resume_round")


class FolderRecord:
    """Describes a run folder, repeatedly while it grows.

    Args:
        folder: it holds the `config.yaml` with which the run was started.
        plugins: the users' packages that take part.

    Raises:
        ConfigError: `config.yaml` is damaged.
        PluginError: a package cannot be imported.
    """

    def __init__(self, folder: Path, plugins: Iterable[str] = ()) -> None:
        self._folder = folder
        self._config = read_config_file(folder / "config.yaml")
        self._code = codes_of(plugins)
        self._grown = {name: _Growing(folder / name) for name in GROWING}

    def to_json(self) -> str:
        """The folder as it is now, for the checkpoint.

        Raises:
            OSError: a file cannot be read.
        """
        files = {name: grown.entry() for name, grown in self._grown.items() if grown.path.is_file()}
        fixed = {name: _Growing(self._folder / name) for name in FIXED}
        files |= {name: read.entry() for name, read in fixed.items() if read.path.is_file()}
        held = {
            "config": self._config,
            "files": files,
            "frozen": _frozen(self._folder),
            "code": self._code,
        }
        return json.dumps(held, default=str)


def notes_of_other_code(folder: Path, plugins: Sequence[str]) -> Iterator[str]:
    """A line for each users' package whose code is not that of the latest checkpoint, if any.

    Raises:
        DamagedFileError, OSError: the checkpoint cannot be read.
    """
    path = folder / CHECKPOINT
    if not plugins or not path.is_file():
        return
    for package in changed(json.loads(read_values(path)[VALUE]).get("code", {}), plugins):
        yield f"{package} has changed since the last round: earlier rounds are of other code"


def check_folder(folder: Path, checkpoint: str = CHECKPOINT) -> None:
    """Refuses a run folder that was changed or damaged since a checkpoint, usually the latest.

    A folder without a checkpoint passes, unless the run has had one: it would begin anew, and lose
    its records and its encoder.

    Raises:
        ConfigError: one line; what differs, and what to do.
        OSError: a file cannot be read.
    """
    path = folder / checkpoint
    if not path.is_file():
        metrics = folder / "metrics.jsonl"
        # A run that is killed after its first line may have no checkpoint yet.
        lines = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
        if (folder / ENDED).exists() or lines > 1:
            raise ConfigError(
                f"{path} was removed, and without it the run cannot continue; put it back, "
                f"or start a new run, which may begin with this one's encoder (init={folder})"
            )
        return
    try:
        saved = json.loads(read_values(path)[VALUE])
    except DamagedFileError as error:
        noise = lookup(read_config_file(folder / "config.yaml"), "privacy", "noise_multiplier")
        may_go_back = checkpoint == CHECKPOINT and not noise
        rounds = earlier_rounds(path.parent) if may_go_back else []
        back = f"go back with resume_round={rounds[-1]}, " if rounds else ""
        raise ConfigError(f"{error}; put back a copy of it, {back}or start a new run") from None
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
    weights = _frozen(folder)
    if (had := saved.get("frozen", weights)) != weights:  # earlier versions noted none
        raise ConfigError(
            f"{folder / FROZEN} holds other weights than at the checkpoint; put back what it held "
            f"({', '.join(had) or 'nothing'}), or start a new run"
        )
    noise = lookup(saved["config"], "privacy", "noise_multiplier")
    if noise and (metrics := saved["files"].get(METRICS)):
        _check_not_older(path, folder / METRICS, metrics["lines"])


class _Growing:
    """A file that only grows: after each round no more is read than what came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = self._bytes = self._lines = 0
        self._digest = hashlib.sha256()

    def entry(self) -> dict[str, Any]:
        """The record's entry for the file as it is now."""
        with self.path.open("rb") as file:
            about = os.fstat(file.fileno())
            if about.st_ino != self._inode or about.st_size < self._bytes:  # it was replaced
                self._inode, self._bytes, self._lines = about.st_ino, 0, 0
                self._digest = hashlib.sha256()
            file.seek(self._bytes)
            data = file.read()
        self._bytes, self._lines = self._bytes + len(data), self._lines + data.count(b"\n")
        self._digest.update(data)
        return {"bytes": self._bytes, "lines": self._lines, "sha256": self._digest.hexdigest()}


def _frozen(folder: Path) -> list[str]:
    """The names of the run's frozen weights, of which there are mostly one or none."""
    return sorted(file.name for file in (folder / FROZEN).glob("*.float32"))


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


def _check_not_older(checkpoint: Path, metrics: Path, lines: int) -> None:
    """Refuses to go on from an older checkpoint that was put back: later rounds are released.

    A kill before the checkpoint of a round leaves one more line, and nobody has seen that round.
    """
    if (more := metrics.read_bytes().count(b"\n") - lines) > 1:
        raise ConfigError(
            f"{checkpoint} is {more} rounds older than {metrics}, and a run with "
            "privacy.noise_multiplier cannot go back: its account of privacy would lack what these "
            "rounds have released; put back the latest checkpoint, or start a new run"
        )


def _check_config(file: Path, saved: Mapping[str, Any]) -> None:
    old, new = flat(saved), flat(read_config_file(file))
    changes = [
        f"{key} {_shown(old, key)} -> {_shown(new, key)}"
        for key in dict.fromkeys([*old, *new])
        if (key in old, old.get(key)) != (key in new, new.get(key))
        and not within(key, FREE)
        and not (key == MAY_GROW and _grows(old, new))
    ]
    if changes:
        raise ConfigError(
            f"{file} was changed since the checkpoint: {listed(changes)}; put the old values back, "
            "or start a new run"
        )


def _grows(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the new configuration only adds rounds, which leaves earlier rounds as they are."""
    rounds, more = old.get(MAY_GROW), new.get(MAY_GROW)
    constant = new.get("schedule.name", "constant") == "constant"
    return constant and isinstance(rounds, int) and isinstance(more, int) and more > rounds


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], default=str) if key in values else "(none)"
