"""The record of private releases: a file that only grows, a line of JSON for each entry."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import Field, TypeAdapter

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
RoundNumber = Annotated[int, Field(ge=0)]
Entry = TypeVar("Entry", bound="DataclassInstance")


class ReleaseRecord(Generic[Entry]):
    """Entries are on the disk before anything is released, so a crash can only overstate releases.

    An incomplete last line is removed: nothing was released for it. Any other line that cannot be
    read is an error. Every line holds a digest of itself and of all lines before it, and a second
    file holds the number of lines and the last digest: no line can change or go missing unnoticed.
    Earlier versions wrote neither digests nor a second file.

    Args:
        file: continued where it exists, made with the first entry where it does not.
        kind: the dataclass of entries; a line must hold exactly the types of its fields.

    Raises:
        ConfigError: one line that names the file and, where it is damaged, the first wrong line.
    """

    def __init__(self, file: Path, kind: type[Entry]) -> None:
        self._file = file
        self._end = file.with_suffix(".end")
        self._kind = TypeAdapter(kind)
        self._load()

    def _load(self) -> None:
        self._digest, self._is_checked = "", False  # of the last line; whether it has one
        self._digests: list[str] = []
        self._entries = list(self._read())
        self._check_end()
        self._is_current = True  # false after an append that failed: its line may be in the file

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, the oldest first."""
        return tuple(self._entries)

    def append(self, entry: Entry) -> None:
        """Adds an entry and waits until it is on the disk.

        Raises:
            ValueError: it could not be read again, and with it no other entry: nothing is written.
            OSError: it cannot be written; then nothing may be released, though it may count.
            ConfigError: as for the class, where the file must be read after such an error.
        """
        values = asdict(entry)
        self._entry(json.dumps(values))
        if not self._is_current:
            self._load()
        digest = _chained(self._digest, values)
        line = json.dumps({**values, DIGEST: digest}) + "\n"
        make_private_folder(self._file.parent)
        self._is_current = False
        append_durably(self._file, line.encode())
        self._entries.append(entry)
        self._digest, self._is_checked, self._is_current = digest, True, True
        end = {"lines": len(self._entries), DIGEST: digest}
        write_atomically(self._end, f"{json.dumps(end)}\n".encode(), mode=0o600)

    def _read(self) -> Iterator[Entry]:
        number = 0
        try:
            for number, line in enumerate(read_whole_lines(self._file), 1):  # noqa: B007
                entry = self._entry(json.dumps(self._checked(line)))
                self._digests.append(self._digest)
                yield entry
        except OSError as error:
            raise ConfigError(f"{self._file} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:  # before the first line is parsed
            number = error.object[: error.start].count(b"\n") + 1
            raise ConfigError(_damaged(self._file, number)) from None
        except (ValueError, RecursionError):
            raise ConfigError(_damaged(self._file, number)) from None

    def _entry(self, text: str) -> Entry:
        return self._kind.validate_json(text, strict=True)

    def _check_end(self) -> None:
        """Compares what the second file says. A crash may leave it one line behind."""
        try:
            end = json.loads(self._end.read_bytes())
            lines, digest = int(end["lines"]), str(end[DIGEST])
        except (FileNotFoundError, NotADirectoryError):  # nothing was written yet
            return
        except OSError as error:
            raise ConfigError(f"{self._end} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            raise ConfigError(f"{self._end} is damaged: put back a copy of it") from None
        if self._digests[lines - 1 : lines] != [digest]:
            raise ConfigError(
                f"{self._file}: {lines} releases were written down and {len(self._digests)} are "
                f"there, or others: put back a copy of it and of {self._end.name}"
            )

    def _checked(self, line: str) -> Any:
        """The values of a line without its digest; a ValueError where it was changed."""
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError("a line must be a JSON object")
        digest = values.pop(DIGEST, None)
        self._digest = _chained(self._digest, values)
        if digest is None:
            if self._is_checked:
                raise ValueError("there is no digest")
        elif line != json.dumps({**values, DIGEST: self._digest}):
            raise ValueError("the digest is wrong")
        self._is_checked = digest is not None
        return values


def _chained(previous: str, values: Any) -> str:
    """The digest of a line, given the digest of all lines before it."""
    return fingerprint_of(previous + json.dumps(values))


def _damaged(file: Path, number: int) -> str:
    return f"{file}, line {number}: no record of a release"
