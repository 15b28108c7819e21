"""Runs that wait for a server, in a folder: one process submits them, another one runs them.

The folder says what the server does, so it has to be its user's own, and writable for nobody else.

Each run has a folder named by its number. `run.yaml` in it is its configuration, `run/` its run
folder once it has begun, and `ended` says how it ended. The names are made by steps that succeed
only once, so nothing has to be locked.
"""

import itertools
import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra_flwr.config import (
    ConfigError,
    DataConfig,
    ModelConfig,
    config_to_yaml,
    load,
    parse,
    read_config_file,
)
from orchestra_flwr.config.user_packages import check_named
from orchestra_flwr.console.printable import printable
from orchestra_flwr.deployment.server_config import DISPLAY, OF_THE_SERVER, ServerConfig
from orchestra_flwr.files import at_home, make_private_folder, write_atomically, write_new
from orchestra_flwr.folder_lock import is_locked

CONFIGURATION, RUN, ENDED = "run.yaml", "run", "ended"
LOG = "audit.jsonl"  # the server's, with a line for each event of a run: watch/queue_log.py
WAITING, BEGUN = "waiting", "begun"
DONE, CANCELLED, FAILED = "done", "cancelled", "failed"
MAX_REASON = 500  # characters


@dataclass(frozen=True)
class QueuedRun:
    """One run of a queue."""

    path: Path  # its folder, named by its number

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
            text = (self.path / ENDED).read_text(errors="replace")
            return " ".join(text[:MAX_REASON].split()) or f"{FAILED}: nobody knows how"
        except FileNotFoundError:
            return BEGUN if self.has_begun else WAITING
        except OSError as error:
            return f"{FAILED}: {ENDED} cannot be read ({error.strerror})"

    @property
    def has_begun(self) -> bool:
        """Whether there is a run folder to go on with."""
        return (self.folder / "config.yaml").is_file()

    def end(self, state: str) -> bool:
        """Records how it ended, unless that is known; returns whether this call ended it.

        Raises:
            OSError: it cannot be written.
        """
        # It may hold names of files, which need not be UTF-8.
        text = printable(" ".join(state.split()))[:MAX_REASON] + "\n"
        try:
            write_new(self.path / ENDED, text.encode())
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
        file, key = self.path / CONFIGURATION, "run_dir"
        if self.has_begun:
            file, key = self.folder / "config.yaml", "resume"
        values = read_config_file(file)
        check_named(file, values.get("plugins", ()), server.plugins)
        logging = values.get("logging")
        display = {name: getattr(server.logging, name) for name in DISPLAY}
        if isinstance(logging, dict):  # anything else is refused below
            values["logging"] = logging | display
        return parse(ServerConfig, {**values, **of_server, key: str(self.folder)})


class RunQueue:
    """A folder of runs, which the server makes.

    Raises:
        ConfigError: it is no folder, belongs to another user, or others may write to it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._check()

    def make(self) -> None:
        """Makes the folder, unless it is there; errors as above, or an OSError."""
        make_private_folder(self.folder)
        self._check()  # it may have been made by somebody else a moment ago

    def _check(self) -> None:
        try:
            about = self.folder.stat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"queue={self.folder}: {error.strerror}") from None
        if not stat.S_ISDIR(about.st_mode):
            raise ConfigError(f"queue={self.folder}: must be a folder, or none yet")
        if about.st_uid != os.geteuid():
            raise ConfigError(
                f"queue={self.folder}: belongs to another user (number {about.st_uid}): "
                "it must be the server's own, and runs are submitted as the same user"
            )
        if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(
                f"queue={self.folder}: others may write to it, and so start runs: "
                f"chmod go-w {self.folder}"
            )

    @property
    def has_server(self) -> bool:
        """Whether a server works on it now, as far as the file system's locks can say."""
        try:
            return is_locked(self.folder)
        except OSError:  # it has none, and there is a server's name in the lock
            return True

    def runs(self) -> list[QueuedRun]:
        """All runs in the order in which they were submitted."""
        runs = [
            QueuedRun(path)
            for path in (self.folder.iterdir() if self.folder.is_dir() else ())
            if path.name.isdecimal() and (path / CONFIGURATION).is_file()
        ]
        return sorted(runs, key=lambda run: int(run.name))

    def next(self) -> QueuedRun | None:
        """The first one that has not ended; None: all have."""
        return next((run for run in self.runs() if run.state in (WAITING, BEGUN)), None)

    def put(self, config: ServerConfig) -> QueuedRun:
        """Adds a run, whole or not at all.

        It gets no number that the queue's log has for another, even if that was removed.

        Raises:
            OSError: it cannot be written.
        """
        text = config_to_yaml(_found_from_anywhere(config)).encode()
        names = {*latest_events(self.folder), *(path.name for path in self.folder.iterdir())}
        taken = [int(name) for name in names if name.isdecimal()]
        for number in itertools.count(max(taken, default=0) + 1):
            path = self.folder / f"{number:04}"
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:  # another process took it a moment ago
                continue
            try:
                write_atomically(path / CONFIGURATION, text, mode=0o600)
            except OSError:
                with suppress(OSError):
                    path.rmdir()
                raise
            return QueuedRun(path)
        raise AssertionError

    def cancel(self, name: str) -> QueuedRun:
        """Ends a run that waits, or, within seconds, one that has begun.

        Raises:
            ConfigError: there is no such run, or it has ended.
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
    of_server = (*OF_THE_SERVER, "run_dir", "resume", "resume_round")
    display = [f"logging.{name}" for name in DISPLAY]
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key.partition(".")[0] in of_server or key in display:
            raise ConfigError(f"{key}: the server of the queue decides it; leave it out")
    return load(ServerConfig, overrides, all_read=True)


def _found_from_anywhere(config: ServerConfig) -> dict[str, Any]:
    """The values of a run; relative paths that lead somewhere from here are made absolute.

    The server may have been started in another folder.
    """
    values = config.model_dump(exclude=set(OF_THE_SERVER))
    for place, names in (
        (values, ("init",)),
        (values["data"], DataConfig.paths),
        (values["model"], ModelConfig.paths),
    ):
        for name in names:
            path = at_home(place.get(name) or "")
            # For weights, "pretrained" is no file, even beside a folder of that name.
            if path.parts and (path.is_file() if name == "weights" else path.exists()):
                place[name] = str(path.absolute())
    return values


def latest_events(folder: Path) -> dict[str, str]:
    """The latest event of each run that a queue's log names, also of runs that were removed.

    Of a damaged log, which its server reports, what can be read.
    """
    latest = {}
    with suppress(OSError):
        for line in (folder / LOG).read_text(errors="replace").splitlines():
            with suppress(ValueError, LookupError, TypeError):
                entry = json.loads(line)
                latest[str(entry["run"])] = str(entry["event"])
    return latest
