"""The lasting record of private releases: a file that only grows, a line of JSON for each entry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from orchestra_flwr.config import ConfigError
from orchestra_flwr.files import (
    append_durably,
    make_private_folder,
    read_whole_lines,
    write_atomically,
)
from orchestra_flwr.fingerprints import fingerprint_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DIGEST = "digest"
Entry = TypeVar("Entry", bound="DataclassInstance")


class ReleaseRecord(Generic[Entry]):
    """Entries that are on the disk before anything that they stand for is released.

    So a crash, a kill or a power cut can only overstate what was released. A last line that was cut
    off never was acted on; it is removed. Any other line that cannot be read is an error, for
    without it nobody knows what was released. Every line holds a digest of itself and of all before
    it, so no line can change or go missing before the last one. How many there are, and the last
    one's digest, stand in a second file beside the first, so no line goes missing at its end
    either. Earlier versions wrote neither digests nor a second file.

    Args:
        file: it is continued where it exists, and made with the first entry where it does not.
        parse: makes an entry, a dataclass, of what `json` reads from a line; raises ValueError,
            TypeError or KeyError for anything else.

    Raises:
        ConfigError: one line that names the file and, where it is damaged, the first wrong line.
    """

    def __init__(self, file: Path, parse: Callable[[Any], Entry]) -> None:
        self._file = file
        self._end = file.with_suffix(".end")
        self._digest, self._is_checked = "", False  # the last line's, and whether it stands there
        self._digests: list[str] = []
        self._entries = list(self._read(parse))
        self._check_end()

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, the oldest first."""
        return tuple(self._entries)

    def append(self, entry: Entry) -> None:
        """Adds an entry and waits until it is on the disk.

        Raises:
            OSError: it cannot be written; then nothing may be released, though it may count.
        """
        values = asdict(entry)
        digest = _chained(self._digest, values)
        line = json.dumps({**values, DIGEST: digest}) + "\n"
        make_private_folder(self._file.parent)
        append_durably(self._file, line.encode())
        self._entries.append(entry)
        self._digest, self._is_checked = digest, True
        end = {"lines": len(self._entries), DIGEST: digest}
        write_atomically(self._end, f"{json.dumps(end)}\n".encode(), mode=0o600)

    def _read(self, parse: Callable[[Any], Entry]) -> Iterator[Entry]:
        number = 0
        try:
            for number, line in enumerate(read_whole_lines(self._file), 1):  # noqa: B007
                entry = parse(self._checked(line))
                self._digests.append(self._digest)
                yield entry
        except OSError as error:
            raise ConfigError(f"{self._file} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:  # before the first line is parsed
            number = error.object[: error.start].count(b"\n") + 1
            raise ConfigError(_damaged(self._file, number)) from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ConfigError(_damaged(self._file, number)) from None

    def _check_end(self) -> None:
        """Compares what the second file says. A crash may leave it one line behind.

        Raises:
            ConfigError: lines are missing, or it cannot be read.
        """
        try:
            end = json.loads(self._end.read_bytes())
            lines, digest = int(end["lines"]), str(end[DIGEST])
        except (FileNotFoundError, NotADirectoryError):  # nothing was written yet
            return
        except OSError as error:
            raise ConfigError(f"{self._end} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ConfigError(f"{self._end} is damaged: put back a copy of it") from None
        if self._digests[lines - 1 : lines] != [digest]:
            raise ConfigError(
                f"{self._file}: {lines} releases were written down and {len(self._digests)} are "
                f"there, or others: put back a copy of it and of {self._end.name}"
            )

    def _checked(self, line: str) -> Any:
        """The values of a line without its digest.

        Raises:
            ValueError: the line, or one before it, is not as it was written.
            TypeError: it holds no values by their names.
        """
        values = json.loads(line)
        if not isinstance(values, dict):
            raise TypeError(f"a line must be a JSON object, not {values!r}")
        found = values.pop(DIGEST, None)
        self._digest = _chained(self._digest, values)
        if found is None:
            if self._is_checked:
                raise ValueError("there is no digest")
        elif line != json.dumps({**values, DIGEST: self._digest}):
            raise ValueError("the digest is wrong")
        self._is_checked = found is not None
        return values


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


def _chained(before: str, values: Any) -> str:
    """The digest of a line and of all lines before it, which have the digest `before`."""
    return fingerprint_of(before + json.dumps(values))


def _damaged(file: Path, number: int) -> str:
    return f"{file}, line {number}: no record of a release"
