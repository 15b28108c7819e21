"""The folder of a run: its configuration, metrics, summary, checkpoint and encoder."""

import itertools
import json
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Self

from orchestra_flwr.config import (
    KEPT_ROUNDS,
    RESUME_MAY_CHANGE,
    Config,
    ConfigError,
    config_to_yaml,
    read_config_file,
)
from orchestra_flwr.files import append_durably, finite, read_whole_lines, write_atomically
from orchestra_flwr.folder_lock import LOCK, FolderInUseError, locked
from orchestra_flwr.reporting.folder_record import check_folder
from orchestra_flwr.reporting.kept_checkpoints import (
    LATEST,
    earlier_path,
    earlier_rounds,
    make_latest,
    round_of,
)
from orchestra_flwr.tensor_files import DamagedFileError

# The options of `federation` that a resumed run may change: who is waited for, and how long.
_SECTION = "federation."
WAITING = [key.removeprefix(_SECTION) for key in RESUME_MAY_CHANGE if key.startswith(_SECTION)]


class RunFolder:
    """A run's folder; made by :meth:`create` or :meth:`resume`, and by :meth:`open` to write.

    Attributes:
        path: the folder.
        checkpoint: the folder of the checkpoint; made by the first one that is saved.
        frozen: the file of the weights that nobody trains, if there are any.
        clients: the state that simulated clients store between rounds, if their policy stores any.
        encoder: the weights of the encoder that the run saves.
        encoders: the encoders of a run with several models, by the models' names.
        metrics: one JSON record a line, in the order of the rounds.
        set_aside: the records of rounds that were undone when the run went back.
        summary: the final results.
        lock: the file whose descriptor holds the folder's lock; None: this object holds none.
        note: a line for a person about what was done to the folder; "": nothing.
        plugins: the users' packages of the run.
        program: what a user types before the keys of the run; "": it was started from Python.
    """

    def __init__(
        self,
        path: Path,
        lock: IO[bytes] | None = None,
        note: str = "",
        plugins: Sequence[str] = (),
        program: str = "",
    ) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint"
        self.frozen = self.checkpoint / "frozen"
        self.clients = path / "clients"
        self.encoder = path / "encoder.safetensors"
        self.encoders = path / "encoders"
        self.metrics = path / "metrics.jsonl"
        self.set_aside = path / "metrics.set_aside.jsonl"
        self.summary = path / "summary.json"
        self.lock = lock
        self.note = note
        self.plugins = plugins
        self.program = program

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses what :meth:`open` would refuse, before images are read; writes nothing.

        Raises:
            ConfigError: as :meth:`open`, or a file of a run to resume cannot be read.
        """
        if config.resume is not None:
            try:
                with _for_this_process(Path(config.resume), f"resume={config.resume}"):
                    folder, _ = cls._checked(config.resume, config.resume_round)
                    folder._check_end(config.federation.rounds, config.resume_round)
            except OSError as error:
                raise ConfigError(f"the run folder cannot be used: {error}") from None
        else:
            _check_place(config.run_dir, Path(config.run_dir or Path("outputs") / config.name))

    @classmethod
    @contextmanager
    def open(cls, config: Config, program: str = "") -> Iterator[Self]:
        """The folder of a configuration's run, new or resumed, for this process alone.

        Raises:
            ConfigError: another process has it, or as :meth:`create` and :meth:`resume` say.
            OSError: names the file that could not be written.
        """
        path = _made_folder(config, "outputs") if config.resume is None else Path(config.resume)
        key = f"{'run_dir' if config.resume is None else 'resume'}={path}"
        with _for_this_process(path, key) as lock:
            note = ""
            if config.resume is not None:
                note = cls.resume(path, config.resume_round).note
                _write_changes(path, config)
            else:
                _begin(path, config)
            yield cls(path, lock, note, config.plugins, program)

    @classmethod
    def create(cls, config: Config, outputs: str | Path = "outputs") -> Self:
        """Makes the folder of a new run and writes `config.yaml`.

        It is `config.run_dir`, else `<outputs>/<config.name>/<YYYY-mm-dd_HH-MM-SS>`, with -2, -3
        ... where runs start in the same second. Nothing that exists is overwritten.

        Raises:
            ConfigError: `run_dir` is a file, is not empty or cannot be made.
            OSError: names the file that could not be written.
        """
        path = _made_folder(config, outputs)
        _begin(path, config)
        return cls(path)

    @classmethod
    def resume(cls, path: str | Path, round_: int | None = None) -> Self:
        """The folder of a run that was started before, once it fits its checkpoint.

        Args:
            round_: the run continues after this round; later ones are set aside. None: after the
                last one.

        Raises:
            ConfigError: there is no run in `path`, a file in it is damaged, or was changed since
                the checkpoint, or there is no checkpoint of that round.
            OSError: a file cannot be read or written.
        """
        folder, earlier = cls._checked(path, round_)
        if round_ is not None and earlier is not None:
            folder._go_back(round_)
        return folder

    @classmethod
    def _checked(cls, path: str | Path, round_: int | None) -> tuple[Self, Path | None]:
        """A folder whose run can continue, and an earlier round's checkpoint, if asked for."""
        folder = cls(Path(path))
        if not (folder.path / "config.yaml").is_file():
            raise ConfigError(f"resume={path}: no run folder (it holds no config.yaml)")
        earlier = None if round_ is None else folder._earlier_checkpoint(round_)
        check_folder(folder.path, *([] if earlier is None else [f"checkpoint/{earlier.name}"]))
        try:
            folder.read_metrics()
        except ValueError as error:  # in lines after the checkpoint, or of an earlier version
            raise ConfigError(f"{error}; remove it, or start a new run") from None
        return folder, earlier

    def _earlier_checkpoint(self, round_: int) -> Path | None:
        """The checkpoint of a round; None: it is the latest one."""
        rounds = earlier_rounds(self.checkpoint)
        with suppress(OSError, DamagedFileError):  # a damaged one is a reason to go back
            if (latest := round_of(self.checkpoint / LATEST)) == round_:
                return None
            rounds = [number for number in [*rounds, latest] if number <= latest]
        if round_ not in rounds:
            held = ", ".join(map(str, rounds)) or "none"
            raise ConfigError(
                f"resume_round={round_}: must be a round whose checkpoint {self.path} holds "
                f"({held}); there are those of the last {KEPT_ROUNDS}"
            )
        return earlier_path(self.checkpoint, round_)

    def _check_end(self, rounds: int, round_: int | None) -> None:
        """Refuses fewer rounds than planned, unless the run ends at its present or asked round."""
        done, planned = self.done if round_ is None else round_, _planned_rounds(self.path)
        if done != rounds < planned:
            here = f"{done}, to end the run where it is, or " if 0 < done < planned else ""
            raise ConfigError(
                f"federation.rounds={rounds}: must be {here}at least {planned}, the rounds that "
                f"{self.path} has"
            )

    def _go_back(self, round_: int) -> None:
        """Makes a round the last one; sets aside the records of later rounds."""
        later = [line for line, record in self._lines() if record["round"] > round_]
        if later:
            read_whole_lines(self.set_aside)  # removes one that a kill cut off
            append_durably(self.set_aside, b"".join(later))
        make_latest(self.checkpoint, round_)
        self.truncate_after(round_)
        self.note = (
            f"goes back to round {round_}: the records of {len(later)} later rounds are in "
            f"{self.set_aside.name}, their checkpoints are removed"
        )

    @property
    def done(self) -> int:
        """The last round with a checkpoint; 0: nothing was trained, -1: there is none."""
        with suppress(OSError, DamagedFileError):
            return round_of(self.checkpoint / LATEST)
        return -1

    def how_to_continue(self, round_: int | None = None) -> str:
        """A line for a person or a shell; `round_`: the round after which to continue."""
        keys = [f"resume={self.path}"]
        keys += [] if round_ is None else [f"resume_round={round_}"]
        keys += [f"plugins=[{','.join(self.plugins)}]"] if self.plugins else []
        resume = f"{self.program} {shlex.join(keys)}" if self.program else " ".join(keys)
        if round_ is not None or not 0 < self.done < _planned_rounds(self.path):
            return f"continue with: {resume}"
        return f"continue with: {resume}; or end it there: {resume} federation.rounds={self.done}"

    def how_it_stopped(self) -> str:
        """A line for a person who has stopped the run."""
        done = self.done
        after = f"after round {done} of {_planned_rounds(self.path)}"
        where = after if done > 0 else "before round 1 was done"
        return f"stopped {where}; {self.how_to_continue()}"

    @property
    def label(self) -> str:
        """The run's name in figures: the names of its folder and of the one around it."""
        return "/".join(self.path.resolve().parts[-2:])

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Appends one record, which is on the disk when this returns; NaN and infinity become null.

        Raises:
            OSError: names the file, which is unchanged.
        """
        append_durably(self.metrics, (_to_json(record) + "\n").encode())

    def read_metrics(self) -> list[dict[str, Any]]:
        """All records; a last line that a kill cut off is left out.

        Raises:
            ValueError: names the line that is not a record.
        """
        return [record for _, record in self._lines()]

    def truncate_after(self, round: int) -> None:
        """Drops the records of rounds after `round`, and a last line that a kill cut off.

        Raises:
            OSError: names the file, which is unchanged.
            ValueError: names the line that is not a record.
        """
        if self.metrics.exists():
            remaining = b"".join(line for line, record in self._lines() if record["round"] <= round)
            write_atomically(self.metrics, remaining, mode=0o600)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes or replaces `summary.json`; NaN and infinity become null.

        Raises:
            OSError: names the file, which is unchanged.
        """
        write_atomically(self.summary, (_to_json(summary, indent=2) + "\n").encode())

    def _lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        if not self.metrics.exists():
            return
        for number, line in enumerate(self.metrics.read_bytes().splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                _ = record["round"] + 0
            except (ValueError, TypeError, KeyError, RecursionError):
                raise ValueError(f"{self.metrics}, line {number}: no record of a round") from None
            yield line, record


def _made_folder(config: Config, outputs: str | Path) -> Path:
    if config.run_dir is None:
        started = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        return _unused_folder(Path(outputs) / config.name / started)
    path = Path(config.run_dir)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_folder(config.run_dir, error.strerror) from None
    return path


@contextmanager
def _for_this_process(path: Path, key: str) -> Iterator[IO[bytes]]:
    try:
        with locked(path) as lock:
            yield lock
    except FolderInUseError as owner:
        raise ConfigError(
            f"{key}: {owner} writes to this folder; wait until it has ended, or stop it"
        ) from None


def _check_place(run_dir: str | None, path: Path) -> None:
    """Refuses a folder that is not empty or cannot be made; None: a folder below `path`."""
    used = (path / LOCK).is_file()  # otherwise locking would leave a trace
    with _for_this_process(path, f"run_dir={path}") if used else nullcontext():
        if path.is_dir():
            _check_empty(path, run_dir)
    above = (path, *path.absolute().parents)
    place = next(path for path in above if os.path.exists(path))  # noqa: PTH110 (never raises)
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return
    try:  # the system itself says why: permissions, or a disk that is read-only
        trial = place / f".{secrets.token_hex(8)}.tmp"
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        if run_dir is None:
            raise ConfigError(f"the run folder cannot be made: {place}: {error.strerror}") from None
        raise _no_folder(run_dir, error.strerror) from None


def _begin(path: Path, config: Config) -> None:
    """Writes `config.yaml` into a folder that holds nothing yet but a lock."""
    _check_empty(path, config.run_dir or str(path))
    write_atomically(path / "config.yaml", config_to_yaml(config).encode())


def _check_empty(path: Path, run_dir: str | None) -> None:
    """Refuses a run's own folder that is not empty; None: it will be made."""
    if run_dir is None:
        return
    try:
        # A kill in the middle of writing config.yaml leaves a temporary file.
        unfinished = {entry.name for entry in path.glob(".config.yaml.*.tmp")}
        names = {entry.name for entry in path.iterdir()} - {LOCK} - unfinished
    except OSError as error:
        raise _no_folder(run_dir, error.strerror) from None
    if "config.yaml" in names:
        resume = shlex.quote(f"resume={run_dir}")
        raise ConfigError(f"run_dir={run_dir}: already holds a run ({resume} continues it)")
    if names:
        raise ConfigError(f"run_dir={run_dir}: already holds files; a new run needs a new folder")


def _planned_rounds(path: Path) -> int:
    return int(read_config_file(path / "config.yaml")["federation"]["rounds"])


def _write_changes(path: Path, config: Config) -> None:
    """Stores for all later resumes what this one changes: more rounds, and who is waited for.

    A service that restarts has no other keys. A run that ends early can still continue: its
    learning rates are for the planned rounds.
    """
    file = path / "config.yaml"
    saved = read_config_file(file)
    old, given = saved["federation"], config.federation.model_dump(mode="json")
    new = {name: given[name] for name in WAITING if name in given}
    new["rounds"] = max(old["rounds"], given["rounds"])
    if any(old.get(name) != value for name, value in new.items()):
        saved["federation"] = old | new
        write_atomically(file, config_to_yaml(saved).encode())


def _no_folder(run_dir: str, reason: str | None) -> ConfigError:
    return ConfigError(
        f"run_dir={run_dir}: must be a new folder, which cannot be made here ({reason})"
    )


def _unused_folder(path: Path) -> Path:
    for number in itertools.count(1):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            continue
        break
    return candidate


def _to_json(value: Mapping[str, Any], indent: int | None = None) -> str:
    return json.dumps(finite(value), indent=indent, allow_nan=False)
