"""The contract of an experiment tracker, to which a run is written beside its folder."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker gets to know of a run.

    Attributes:
        folder: the run folder.
        name: the run's name, as its pictures have it.
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
        library: the module that must be there; the optional extra with it has the tracker's name.
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
