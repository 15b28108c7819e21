"""A report as one self-contained HTML page: no scripts, no other files, no network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import singledispatch
from html import escape
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

LARGEST_SVG = 300_000  # bytes; pictures of thousands of points are smaller as PNG
STYLE = """
:root { color-scheme: light dark; --ink: #24292f; --quiet: #626b76; --page: #fdfdfc; --card: #fff;
  --line: #dfe3e8; --stripe: #f5f7f9; --accent: #0b62a8; --warn: #fff4d6; --warn-ink: #6b4800;
  --red: #b3261e; --red-soft: #fdecea; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e6ea; --quiet: #9aa4b0; --page: #14171b;
  --card: #1b1f25; --line: #333a44; --stripe: #20252c; --accent: #79b8f3; --warn: #3a2f10;
  --warn-ink: #f3d78b; --red: #ff8a80; --red-soft: #3b1e1c; }
  img { filter: invert(0.89) hue-rotate(180deg); } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { display: grid; padding: 1.5rem 0 5rem;
  grid-template-columns: minmax(1rem, 1fr) minmax(0, 60rem) minmax(1rem, 1fr); }
main > * { grid-column: 2; }
/* A wide table takes the room on both sides of the text. */
main > .scroll { grid-column: 1 / -1; justify-self: center;
  min-width: min(60rem, 100% - 2rem); max-width: calc(100% - 2rem); }
h1 { font-size: 1.8rem; margin: 0.5rem 0 0.25rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 0.5rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.75rem 0 0.5rem; }
p { margin: 0.5rem 0; max-width: 46rem; }
a { color: var(--accent); text-decoration: none; }
nav { display: flex; flex-wrap: wrap; gap: 0.4rem; margin: 1rem 0; }
nav a { border: 1px solid var(--line); border-radius: 1rem; padding: 0.15rem 0.75rem;
  background: var(--card); font-size: 0.9rem; }
.quiet { color: var(--quiet); font-size: 0.92rem; }
.warning, .danger { padding: 0.6rem 0.9rem; border-radius: 0.5rem; background: var(--warn);
  color: var(--warn-ink); font-weight: 600; }
.danger { background: var(--red-soft); color: var(--red); }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 0.5rem;
  background: var(--card); margin: 0.75rem 0; width: fit-content; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.93rem; }
th, td { padding: 0.35rem 0.9rem; text-align: right; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--quiet); font-weight: 600; border-bottom: 1px solid var(--line); }
tbody tr:nth-child(even) { background: var(--stripe); }
tr.red td:first-child { color: var(--red); font-weight: 700; }
tr.red td:first-child::after { content: " \\2014  not private"; }
figure { margin: 1rem 0; } figcaption { color: var(--quiet); font-size: 0.9rem; }
img { max-width: 100%; height: auto; border-radius: 0.4rem; }
pre { overflow-x: auto; background: var(--stripe); border: 1px solid var(--line);
  font-size: 0.85rem; border-radius: 0.5rem; padding: 0.7rem 0.9rem; }
details { border: 1px solid var(--line); border-radius: 0.5rem; padding: 0.45rem 0.9rem;
  margin: 0.75rem 0; background: var(--card); }
summary { cursor: pointer; font-weight: 600; }
ul { padding-left: 1.2rem; } li { overflow-wrap: anywhere; }
"""


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """The page, with links to the headings of level 2 on top."""
    places = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
    links = "".join(f'<a href="#{_anchor(text)}">{escape(text)}</a>' for text in places)
    nav = f"<nav>{links}</nav>" if len(places) > 1 else ""
    first, *others = [_html(block) for block in blocks]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{first}\n{nav}\n" + "\n".join(others) + "\n</main></body></html>\n"
    )


@singledispatch
def _html(block: Block) -> str:
    raise TypeError(f"{type(block).__name__} is not a block")


@_html.register
def _heading(block: Heading) -> str:
    return f'<h{block.level} id="{_anchor(block.text)}">{escape(block.text)}</h{block.level}>'


@_html.register
def _paragraph(block: Paragraph) -> str:
    return f'<p class="{block.tone}">{escape(block.text)}</p>'


@_html.register
def _items(block: Items) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in block.lines) + "</ul>"


@_html.register
def _code(block: Code) -> str:
    return f"<pre>{escape(block.text)}</pre>"


@_html.register
def _picture(block: Picture) -> str:
    caption = escape(block.caption)
    return (
        f'<figure><img alt="{caption}" src="{_inlined(block.file)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


@_html.register
def _folded(block: Folded) -> str:
    content = "\n".join(_html(inner) for inner in block.blocks)
    return f"<details><summary>{escape(block.title)}</summary>\n{content}\n</details>"


@_html.register
def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = []
    for number, row in enumerate(table.rows):
        cells = [
            f"<td><b>{escape(cell)}</b></td>"
            if (number, column) in table.strong
            else f"<td>{escape(cell)}</td>"
            for column, cell in enumerate(row)
        ]
        red = ' class="red"' if number in table.danger else ""
        body.append(f"<tr{red}>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _inlined(file: Path) -> str:
    picture, kind = file.with_name(f"{file.name}.svg"), "svg+xml"
    if picture.stat().st_size > LARGEST_SVG:
        picture, kind = file.with_name(f"{file.name}.png"), "png"
    return f"data:image/{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"


def _anchor(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())
