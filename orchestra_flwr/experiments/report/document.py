"""A report as data: a list of blocks, which `markdown` and `html` turn into text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Heading:
    """A heading of level 1 to 3."""

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Text; a quiet one may be skipped, a warning may not."""

    text: str
    tone: Literal["plain", "quiet", "warning"] = "plain"


@dataclass(frozen=True)
class Items:
    """A list of lines."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """Commands, as they are typed."""

    text: str


@dataclass(frozen=True)
class Table:
    """Columns and rows; the first column names the row, the others hold numbers.

    Attributes:
        columns: their titles.
        rows: a text for every column.
        strong: (row, column) of highlighted cells.
        danger: rows that are marked in red.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[tuple[int, int]] = frozenset()
    danger: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A picture, stored as `<file>.png` and `<file>.svg`."""

    file: Path
    caption: str


@dataclass(frozen=True)
class Folded:
    """Blocks that are hidden until the reader opens them."""

    title: str
    blocks: tuple[Block, ...]


Block = Heading | Paragraph | Items | Code | Table | Picture | Folded
