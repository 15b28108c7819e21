"""The folder of a run: its configuration, metrics, summary, checkpoint and encoder."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from orchestra_flwr.config import Config, ConfigError, config_to_yaml
from orchestra_flwr.files import append_durably, write_atomically


class RunFolder:
    """A run's folder; made by :meth:`create` or :meth:`resume`.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, config: Config, outputs: str | Path = "outputs") -> Self:
        """Makes the folder of a new run and writes `config.yaml`.

        It is `config.run_dir`, else `<outputs>/<config.name>/<YYYY-mm-dd_HH-MM-SS>`, with -2, -3
        ... where runs start in the same second. Nothing that exists is written over.

        Raises:
            ConfigError: `run_dir` is a file, is not empty or cannot be made.
            OSError: names the file that could not be written.
        """
        if config.run_dir is not None:
            folder = cls(_explicit_folder(config.run_dir))
        else:
            started = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
            folder = cls(_unused_folder(Path(outputs) / config.name / started))
        write_atomically(folder.path / "config.yaml", config_to_yaml(config).encode())
        return folder

    @classmethod
    def resume(cls, path: str | Path) -> Self:
        """Opens the folder of a run that was started.

        Raises:
            ConfigError: there is no run in `path`.
        """
        folder = Path(path)
        if not (folder / "config.yaml").is_file():
            raise ConfigError(f"resume={path}: no run folder (it holds no config.yaml)")
        return cls(folder)

    @property
    def checkpoint(self) -> Path:
        """The folder of the checkpoint; made by the first one that is saved."""
        return self.path / "checkpoint"

    @property
    def clients(self) -> Path:
        """The state that simulated clients store between rounds, if their policy stores any."""
        return self.path / "clients"

    @property
    def encoder(self) -> Path:
        """The weights of the encoder that the run saves."""
        return self.path / "encoder.safetensors"

    @property
    def metrics(self) -> Path:
        """One JSON record a line, in the order of the rounds."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """The final results."""
        return self.path / "summary.json"

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
            write_atomically(self.metrics, remaining)

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
            except (ValueError, TypeError, KeyError):
                raise ValueError(f"{self.metrics}, line {number}: no record of a round") from None
            yield line, record


def _explicit_folder(run_dir: str) -> Path:
    path = Path(run_dir)
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise ConfigError(
            f"run_dir={run_dir}: must be a new folder, which cannot be made here ({error.strerror})"
        ) from None
    if "config.yaml" in names:
        raise ConfigError(f"run_dir={run_dir}: already holds a run (resume={run_dir} continues it)")
    if names:
        raise ConfigError(f"run_dir={run_dir}: already holds files; a new run needs a new folder")
    return path


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


def finite(value: Any) -> Any:
    """A copy with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
