"""Experiment trackers, `logging.<name>=true`: each is a file of this folder.

A run is written to them in addition to its folder, and goes on without one that fails.
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.console.text import flat
from orchestra_flwr.extras import require
from orchestra_flwr.plugins import Room

ROOM = Room("orchestra_flwr.reporting.trackers", "Tracker")
AGAIN_SECONDS = 3600.0  # after a failure; the library itself may have tried for minutes
# Values of single clients, whose names are nobody else's business.
BY_CLIENT = re.compile(r"(release/clients|releases|members)/")


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker learns about a run.

    Attributes:
        folder: the run folder.
        name: the run's name, as in its figures.
        id: unique; a resumed run has the same.
        configuration: all keys, sections within sections.
    """

    folder: Path
    name: str
    id: str
    configuration: Mapping[str, Any]


class Tracker(ABC):
    """One run in an experiment tracker; opened when the run starts or is resumed.

    Class attributes:
        library: the module it needs; the optional extra that installs it has the tracker's name.
    """

    library: ClassVar[str]

    @abstractmethod
    def __init__(self, run: TrackedRun) -> None:
        """Opens it and writes the run's name and configuration."""

    @abstractmethod
    def numbers(self, round: int, numbers: Mapping[str, float]) -> None:
        """Writes numbers by their path, e.g. `loss/total`, at step `round`."""

    @abstractmethod
    def picture(self, file: Path, round: int) -> None:
        """Writes a PNG of the run folder under its name, at step `round`."""

    @abstractmethod
    def close(self, completed: bool) -> None:
        """Sends the rest; a run that is not `completed` was stopped or has failed."""


def check_trackers(config: Config) -> None:
    """Checks that the libraries of the chosen trackers are installed.

    Raises:
        ConfigError: names the first that is missing, and what to install.
    """
    for name in config.logging.trackers:
        require(f"logging.{name}=true", name, ROOM.find(name).library)


class Trackers:
    """The trackers that `logging` names; with none it does nothing.

    One that fails later, because its server cannot be reached or its disk is full, is left out for
    an hour: a line says so, and training goes on. The run folder has all that it would have logged.

    As a context it closes them, as those of a failed run if :meth:`finish` was not reached.

    Raises:
        ConfigError: one cannot be opened: it has no account, or its server cannot be reached.
    """

    def __init__(self, config: Config, run: TrackedRun, message: Callable[[str], None]) -> None:
        self._message = message
        self._completed = False
        self._open: dict[str, Tracker] = {}
        self._again: dict[str, float] = {}  # when one that failed is tried again, monotonic
        for name in config.logging.trackers:
            try:
                self._open[name] = ROOM.find(name)(run)
            except Exception as error:  # whatever the library raises
                self._close()
                raise ConfigError(f"logging.{name}=true: {_reason(error)}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def add(self, round: int, record: Mapping[str, Any]) -> None:
        """Writes the numbers of a round's record, except those of single clients."""
        numbers = {
            path: value
            for path, value in flat(record, "/").items()
            if isinstance(value, int | float) and not isinstance(value, bool) and path != "round"
            if not BY_CLIENT.search(path)
        }
        self._each(lambda tracker: tracker.numbers(round, numbers))

    def finish(self, round: int, summary: Mapping[str, Any], folder: Path) -> None:
        """Writes the numbers of the summary and the pictures of the run folder."""
        self.add(round, {"summary": summary})
        for file in sorted(folder.glob("*.png")):
            self._each(lambda tracker, file=file: tracker.picture(file, round))  # type: ignore[misc]
        self._completed = True

    def _close(self) -> None:
        self._again.clear()  # one that failed is told of the end all the same
        self._each(lambda tracker: tracker.close(self._completed))

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for name, tracker in self._open.items():
            if time.monotonic() < self._again.get(name, 0.0):
                continue
            try:
                action(tracker)
            except Exception as error:  # whatever the library raises: the run is worth more
                self._again[name] = time.monotonic() + AGAIN_SECONDS
                self._message(f"logging.{name}: {_reason(error)}; not logged for an hour")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
