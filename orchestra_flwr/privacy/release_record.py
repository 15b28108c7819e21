"""The lasting record of private releases: a file that only grows, a line of JSON for each entry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from orchestra_flwr.config import ConfigError
from orchestra_flwr.files import append_durably, read_whole_lines

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Entry = TypeVar("Entry", bound="DataclassInstance")


class ReleaseRecord(Generic[Entry]):
    """Entries that are on the disk before anything that they stand for is released.

    So a crash, a kill or a power cut can only overstate what was released. A last line that was cut
    off never was acted on; it is removed. Any other line that cannot be read is an error, for
    without it nobody knows what was released.

    Args:
        file: it is continued where it exists, and made with the first entry where it does not.
        parse: makes an entry, a dataclass, of what `json` reads from a line; raises ValueError,
            TypeError or KeyError for anything else.

    Raises:
        ConfigError: one line that names the file and, where it is damaged, the first wrong line.
    """

    def __init__(self, file: Path, parse: Callable[[Any], Entry]) -> None:
        self._file = file
        self._entries = list(_read(file, parse))

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, the oldest first."""
        return tuple(self._entries)

    def append(self, entry: Entry) -> None:
        """Adds an entry and waits until it is on the disk.

        Raises:
            OSError: it cannot be written; then nothing may be released.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True)
        append_durably(self._file, (json.dumps(asdict(entry)) + "\n").encode())
        self._entries.append(entry)


def parse_round(value: Any) -> int:
    """The number of a round as it stands in a line.

    Raises:
        ValueError: it is not a whole number of at least 0.
    """
    if type(value) is not int or value < 0:
        raise ValueError(f"round must be at least 0, not {value!r}")
    return value


def parse_name(value: Any) -> str:
    """The name of a client or a run as it stands in a line.

    Raises:
        ValueError: it is not text.
    """
    if not isinstance(value, str):
        raise ValueError(f"a name must be text, not {value!r}")
    return value


def _read(file: Path, parse: Callable[[Any], Entry]) -> Iterator[Entry]:
    number = 0
    try:
        for number, line in enumerate(read_whole_lines(file), 1):  # noqa: B007
            yield parse(json.loads(line))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:  # before the first line is parsed
        number = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(_damaged(file, number)) from None
    except (ValueError, TypeError, KeyError):
        raise ConfigError(_damaged(file, number)) from None


def _damaged(file: Path, number: int) -> str:
    return f"{file}, line {number}: no record of a release"
