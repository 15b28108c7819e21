"""Runs that wait for a server, in a folder: who submits them and who runs them are two processes.

Each run has a folder named by its number. `run.yaml` in it is its configuration, `run/` its run
folder once it has begun, and `ended` says how it ended. The names are made by steps that cannot be
done twice, so nothing has to be locked.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra_flwr.config import ConfigError, config_to_yaml, load, parse, read_config_file
from orchestra_flwr.config.user_packages import check_named
from orchestra_flwr.deployment.server_config import OF_THE_SERVER, ServerConfig
from orchestra_flwr.files import make_private_folder, write_atomically

CONFIGURATION, RUN, ENDED = "run.yaml", "run", "ended"
DONE, CANCELLED, FAILED = "done", "cancelled", "failed"
MAX_REASON = 500  # characters


@dataclass(frozen=True)
class QueuedRun:
    """One run of a queue.

    Attributes:
        path: its folder, named by its number.
    """

    path: Path

    @property
    def name(self) -> str:
        """Its number, as it is shown and cancelled."""
        return self.path.name

    @property
    def folder(self) -> Path:
        """Its run folder; there, once the run has begun."""
        return self.path / RUN

    @property
    def state(self) -> str:
        """How it stands: waiting, begun, or how it ended."""
        try:
            return (self.path / ENDED).read_text().strip() or f"{FAILED}: nobody knows how"
        except FileNotFoundError:
            return "begun" if self.has_begun else "waiting"

    @property
    def has_begun(self) -> bool:
        """Whether there is something to go on with."""
        return (self.folder / "config.yaml").is_file()

    def end(self, state: str) -> bool:
        """Writes down how it ended, unless that is known; whether it was this that ended it.

        Raises:
            OSError: it cannot be written.
        """
        try:
            with (self.path / ENDED).open("x") as file:
                file.write(" ".join(state.split())[:MAX_REASON] + "\n")
        except FileExistsError:
            return False
        return True

    def config(self, server: ServerConfig) -> ServerConfig:
        """What is to be run: this configuration, at the address and with the keys of a server.

        Raises:
            ConfigError: it cannot be read, is no configuration of this version, or names packages
                of plug-ins that the server's own command does not name.
        """
        of_server = server.model_dump(mode="json", include=set(OF_THE_SERVER)) | {"queue": None}
        folder = self.folder if self.has_begun else self.path
        file = folder / ("config.yaml" if self.has_begun else CONFIGURATION)
        values = read_config_file(file)
        check_named(file, values.get("plugins", ()), server.plugins)
        key = "resume" if self.has_begun else "run_dir"
        return parse(ServerConfig, {**values, **of_server, key: str(self.folder)})


class RunQueue:
    """A folder of runs.

    Args:
        folder: is made by the first run.

    Raises:
        ConfigError: it is no folder.
    """

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"queue={folder}: must be a folder, or none yet")
        self.folder = folder

    def runs(self) -> list[QueuedRun]:
        """All runs in the order in which they were submitted."""
        found = [
            QueuedRun(path)
            for path in (self.folder.iterdir() if self.folder.is_dir() else ())
            if path.name.isdecimal() and (path / CONFIGURATION).is_file()
        ]
        return sorted(found, key=lambda run: int(run.name))

    def next(self) -> QueuedRun | None:
        """The first one that has not ended; None: all have."""
        return next((run for run in self.runs() if run.state in ("waiting", "begun")), None)

    def put(self, config: ServerConfig) -> QueuedRun:
        """Adds a run, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        make_private_folder(self.folder)
        taken = [int(path.name) for path in self.folder.iterdir() if path.name.isdecimal()]
        for number in itertools.count(max(taken, default=0) + 1):
            path = self.folder / f"{number:04}"
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:  # somebody else's, a moment ago
                continue
            values: Mapping[str, Any] = config.model_dump(exclude=set(OF_THE_SERVER))
            text = config_to_yaml(values).encode()
            write_atomically(path / CONFIGURATION, text, mode=0o600)
            return QueuedRun(path)
        raise AssertionError

    def cancel(self, name: str) -> QueuedRun:
        """Ends a run that waits, or, within a second, one that has begun.

        Raises:
            ConfigError: there is no such run, or it has ended.
            OSError: it cannot be written.
        """
        runs = {run.name: run for run in self.runs()}
        if name not in runs:
            raise ConfigError(f"cancel={name}: must be one of {', '.join(runs) or 'none'}")
        if not runs[name].end(CANCELLED):
            raise ConfigError(f"cancel={name}: this run has ended ({runs[name].state})")
        return runs[name]


def run_to_submit(overrides: list[str]) -> ServerConfig:
    """The configuration of a run that is to be put into a queue.

    Raises:
        ConfigError: as for a server; or a key that the server, or the queue, decides.
    """
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key in (*OF_THE_SERVER, "run_dir", "resume", "resume_round"):
            raise ConfigError(f"{key}: the server of the queue decides it; leave it out")
    return load(ServerConfig, overrides, all_read=True)
