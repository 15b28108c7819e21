"""A report as Markdown; pictures are linked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from pathlib import Path

from orchestra_flwr.experiments.report.document import (
    Block,
    Code,
    Folded,
    Heading,
    Items,
    Paragraph,
    Picture,
    Table,
)


def to_markdown(blocks: Sequence[Block], folder: Path) -> str:
    """The blocks as text, for a file in `folder`: links to pictures are relative to it."""
    return "\n\n".join(_markdown(block, folder) for block in blocks) + "\n"


@singledispatch
def _markdown(block: Block, folder: Path) -> str:
    raise TypeError(f"{type(block).__name__} is not a block")


@_markdown.register
def _heading(block: Heading, folder: Path) -> str:
    return f"{'#' * block.level} {block.text}"


@_markdown.register
def _paragraph(block: Paragraph, folder: Path) -> str:
    forms = {"plain": "{}", "quiet": "*{}*", "warning": "> **{}**"}
    return forms[block.tone].format(block.text)


@_markdown.register
def _items(block: Items, folder: Path) -> str:
    return "\n".join(f"- {line}" for line in block.lines)


@_markdown.register
def _code(block: Code, folder: Path) -> str:
    return f"```\n{block.text}\n```"


@_markdown.register
def _picture(block: Picture, folder: Path) -> str:
    return f"![{block.caption}]({block.file.relative_to(folder).as_posix()}.png)"


@_markdown.register
def _folded(block: Folded, folder: Path) -> str:
    content = "\n\n".join(_markdown(inner, folder) for inner in block.blocks)
    return f"<details><summary>{block.title}</summary>\n\n{content}\n\n</details>"


@_markdown.register
def _table(table: Table, folder: Path) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rules = ["---", *["---:"] * (len(table.columns) - 1)]
    rows = [
        [
            f"**{cell}**" if (number, column) in table.strong else cell
            for column, cell in enumerate(row)
        ]
        for number, row in enumerate(table.rows)
    ]
    for number in table.danger:
        rows[number][0] += " (**NOT PRIVATE**)"
    return "\n".join(line(cells) for cells in (table.columns, rules, *rows))
