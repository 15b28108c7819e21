"""The parts of a report, as Markdown; text is escaped, so that it is shown as it is."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape as html_escape
from pathlib import Path
from urllib.parse import quote

from orchestra_flwr.console.printable import printable

FIGURES = "figures"  # folder beside the report
NOT_PRIVATE = "**NOT PRIVATE**"
# Characters with a meaning in Markdown: underscores only beside something else than a letter or
# digit, and characters that begin a list, a rule, a heading or a quotation only at the start. A
# heading may also end with #.
SYNTAX = re.compile(r"[\\`*\[\]<&|~]|(?<![^\W_])_|_(?![^\W_])|^[#>]|#$|^[-+](?=[- ]|$)")
NUMBER = re.compile(r"^(\d{1,9})([.)])(?= |$)")  # of a list


@dataclass(frozen=True)
class Table:
    """Columns and rows; the first column names the row, the others hold numbers."""

    columns: tuple[str, ...]  # their titles
    rows: tuple[tuple[str, ...], ...]  # a text for every column
    strong: frozenset[tuple[int, int]] = frozenset()  # (row, column) of highlighted cells
    danger: frozenset[int] = frozenset()  # rows of runs that were not private, which are marked

    def markdown(self) -> str:
        """The table as Markdown; all columns but the first are right-aligned."""
        rows = [[escape(cell) for cell in row] for row in self.rows]
        for row, column in self.strong:
            rows[row][column] = f"**{rows[row][column]}**"
        for row in self.danger:
            rows[row][0] += f" ({NOT_PRIVATE})"
        rules = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = (map(escape, self.columns), rules, *rows)
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escape(text: str) -> str:
    """Markdown that shows a text as it is, on one line."""
    return NUMBER.sub(r"\1\\\2", SYNTAX.sub(r"\\\g<0>", printable(text)))


def heading(level: int, text: str) -> str:
    """A heading of level 1 to 3."""
    return f"{'#' * level} {escape(text)}"


def quiet(text: str) -> str:
    """A paragraph that may be skipped."""
    return f"*{escape(text)}*"


def warning(text: str) -> str:
    """A paragraph that may not be skipped."""
    return f"> **{escape(text)}**"


def items(lines: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {escape(line)}" for line in lines)


def code(text: str) -> str:
    """Commands, as they are typed."""
    fence = max([*re.findall("`{3,}", text), "``"], key=len) + "`"
    return f"{fence}\n{text}\n{fence}"


def picture(file: Path, caption: str) -> str:
    """A link to `<file>.png` in the folder of figures, which also holds `<file>.svg`."""
    return f"![{escape(caption)}]({FIGURES}/{quote(file.name)}.png)"


def folded(title: str, *parts: str) -> str:
    """Parts that are hidden until the reader opens them."""
    content = "\n\n".join(parts)
    return f"<details><summary>{html_escape(title)}</summary>\n\n{content}\n\n</details>"
