"""Tables for people and their spreadsheets, as CSV: one value, such as a label, for each file."""

import csv
import io
import posixpath
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.files import at_home

SEPARATORS = (",", ";", "\t")
FILE_COLUMNS = ("file", "path")  # one table serves for training and for labels
# Spreadsheets run a cell that begins so as a formula (OWASP, CSV Injection).
FORMULA = ("=", "+", "-", "@")  # and tab and return, which :func:`printable` escapes


def table_text(rows: Iterable[Sequence[str]]) -> str:
    """Rows as CSV, printable, with an apostrophe before texts that would be formulas.

    Numbers stay numbers. :func:`read_file_table` removes the apostrophes again.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_as_text, row) for row in rows)
    return text.getvalue()


def read_file_table(
    key: str, path: str, columns: tuple[str, str], *, may_lack: bool = False
) -> dict[str, str]:
    """The value of each file in a CSV whose first line names both columns, and possibly others.

    The first line shows which separator a spreadsheet wrote: comma, semicolon or tab. Spaces around
    values are removed, and so are a path's leading `./` and the apostrophes of :func:`table_text`.
    Spaces around files stay, as they may belong to the name: :func:`values_by_file`.

    Args:
        key: the configuration key that names the table, for messages.
        path: the table; ``~`` is the home directory.
        columns: the names of the columns with the files and with their values.
        may_lack: whether files may lack a value; these are left out.

    Raises:
        ConfigError: the table cannot be read, lacks a column or has it twice, or has a line with
            too many fields, without a file or value, or with a second value for one file.
    """
    values: dict[str, str] = {}
    for line, (file, value) in read_table(key, path, columns):
        if not file or not (value or may_lack):
            raise ConfigError(f"{key}={path}: line {line} has no {columns[0]} or no {columns[1]}")
        if value and values.setdefault(file, value) != value:
            raise ConfigError(
                f"{key}={path}: line {line}: {printable(file)} has a second {columns[1]}"
            )
    return values


def read_table(
    key: str, path: str, columns: Sequence[str], keys: Mapping[str, str] = MappingProxyType({})
) -> list[tuple[int, list[str]]]:
    """The lines of such a table: the number of each, and its cells in the order of `columns`.

    The first column is that of the files, `file` or `path`; cells may be empty. `keys` are the
    configuration keys that name columns, for messages.

    Raises:
        ConfigError: as :func:`read_file_table`, except for empty cells and second values.
    """
    lines = []
    for line, row in _rows(key, path, columns, keys):
        if None in row:
            raise ConfigError(
                f"{key}={path}: line {line} has more fields than the first line; text that "
                "contains the separator needs quotes"
            )
        file, *cells = (row[column] or "" for column in columns)
        lines.append((line, [_name(file), *(_from_text(cell.strip()) for cell in cells)]))
    return lines


def named_files(listed: Collection[str], files: Collection[str]) -> dict[str, str]:
    """For each name in a table the file that it means.

    That of the same name, else the one that differs in the Unicode form alone: macOS may store an
    accent as a character of its own, where a table has one character for letter and accent. Where
    there is neither, spaces around the name are the table's, and it means the file without them.
    A name that means no file is there as it is.
    """
    same, form = {*files}, partial(unicodedata.normalize, "NFC")
    others = {form(name): name for name in same.difference(listed)}

    def meant(name: str) -> str:
        for written in (name, _without_spaces(name)):
            file = written if written in same else others.get(form(written))
            if file is not None:
                return file
        return name

    return {name: meant(name) for name in listed}


def values_by_file(
    key: str, column: str, values: Mapping[str, str], files: Collection[str]
) -> dict[str, str]:
    """The values of :func:`read_file_table` by the files that its names mean.

    Args:
        key: the configuration key and the table that it names, for messages.
        column: the name of the column with the values.
        values: the value of each name; one that means no file stays as it is.
        files: the names of all files.

    Raises:
        ConfigError: two names mean one file, and their values differ.
    """
    names = named_files(values, files)
    by_file: dict[str, str] = {}
    for name, value in values.items():
        if by_file.setdefault(names[name], value) != value:
            raise ConfigError(f"{key}: {printable(names[name])} has a second {column}")
    return by_file


def _name(cell: str) -> str:
    """A file's name with the spaces around it, but without tabs and line ends there."""
    if not cell.strip():
        return ""
    return posixpath.normpath(_from_text(cell if printable(cell) == cell else cell.strip()))


def _without_spaces(name: str) -> str:
    # An apostrophe behind a space is still there, any other has been removed.
    bare = _from_text(name.strip()) if name[:1].isspace() else name.strip()
    return posixpath.normpath(bare)


def _as_text(cell: str) -> str:
    cell = printable(cell)
    return "'" + cell if _is_formula(cell) else cell


def _from_text(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _is_formula(cell) else cell


def _is_formula(cell: str) -> bool:
    """Whether a text would be a formula, with apostrophes before it or not."""
    if not cell.lstrip("'").startswith(FORMULA):
        return False
    with suppress(ValueError):
        float(cell)
        return False
    return True


def _rows(
    key: str, path: str, columns: Sequence[str], keys: Mapping[str, str]
) -> list[tuple[int, dict[str | None, str | None]]]:
    """The lines with their numbers, by the names of the columns."""
    file = at_home(path)
    try:
        text = file.read_bytes().decode("utf-8-sig")
        separator, names = _first_line(text, columns)
        # Else a quote that is never closed would swallow all lines after it.
        reader = csv.DictReader(_lines(text), names, delimiter=separator, strict=True)
        rows = [(reader.line_num, row) for row in reader][1:]
    except UnicodeDecodeError:
        raise ConfigError(
            f"{key}={path}: cannot be read (is not UTF-8; spreadsheets save it as CSV UTF-8)"
        ) from None
    except OSError as error:
        raise ConfigError(f"{key}={path}: cannot be read ({error.strerror})") from None
    except csv.Error as error:
        raise ConfigError(
            f"{key}={path}: cannot be read ({error}); is a quote missing, or not doubled?"
        ) from None
    for name in columns:
        if name not in names:
            chosen = f" ({keys[name]})" if name in keys else ""
            raise ConfigError(
                f"{key}={path}: has no column {name}{chosen}; its first line must name the columns "
                f"{' and '.join(columns)}, and names {printable(', '.join(names)) or 'none'}"
            )
        if names.count(name) > 1:
            raise ConfigError(
                f"{key}={path}: has several columns {name}, in capitals or not; rename the others"
            )
    return rows


def _first_line(text: str, columns: Sequence[str]) -> tuple[str, list[str]]:
    """The separator of the columns, and their names in lower case."""
    headers = {}
    for separator in SEPARATORS:
        first = next(csv.reader(_lines(text), delimiter=separator), [])
        names = [name.strip().lower() for name in first]
        if columns[0] in FILE_COLUMNS and columns[0] not in names:
            names = [columns[0] if name in FILE_COLUMNS else name for name in names]
        headers[separator] = names
    fitting = (separator for separator, names in headers.items() if {*columns} <= {*names})
    separator = next(fitting, max(SEPARATORS, key=lambda candidate: len(headers[candidate])))
    return separator, headers[separator]


def _lines(text: str) -> io.StringIO:
    """Lines for the reader; splitlines would also split at characters that file names may hold."""
    return io.StringIO(text, newline="")
