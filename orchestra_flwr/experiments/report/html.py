"""A report's Markdown as one self-contained HTML page: no scripts, no other files, no network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

MAX_SVG = 300_000  # bytes; pictures of thousands of points are smaller as PNG
STYLE = """
:root { color-scheme: light dark; --ink: #24292f; --quiet: #626b76; --page: #fdfdfc; --card: #fff;
  --line: #dfe3e8; --stripe: #f5f7f9; --accent: #0b62a8; --warn: #fff4d6; --warn-ink: #6b4800;
  --red: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e6ea; --quiet: #9aa4b0; --page: #14171b;
  --card: #1b1f25; --line: #333a44; --stripe: #20252c; --accent: #79b8f3; --warn: #3a2f10;
  --warn-ink: #f3d78b; --red: #ff8a80; }
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
p > em { color: var(--quiet); font-size: 0.92rem; font-style: normal; }
blockquote { margin: 0.5rem 0; padding: 0.1rem 0.9rem; border-radius: 0.5rem;
  background: var(--warn); color: var(--warn-ink); }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 0.5rem;
  background: var(--card); margin: 0.75rem 0; width: fit-content; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.93rem; }
th, td { padding: 0.35rem 0.9rem; text-align: right; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--quiet); font-weight: 600; border-bottom: 1px solid var(--line); }
tbody tr:nth-child(even) { background: var(--stripe); }
td:first-child strong { color: var(--red); }
.caption { display: block; color: var(--quiet); font-size: 0.9rem; }
img { max-width: 100%; height: auto; border-radius: 0.4rem; }
pre { overflow-x: auto; background: var(--stripe); border: 1px solid var(--line);
  font-size: 0.85rem; border-radius: 0.5rem; padding: 0.7rem 0.9rem; }
details { border: 1px solid var(--line); border-radius: 0.5rem; padding: 0.45rem 0.9rem;
  margin: 0.75rem 0; background: var(--card); }
summary { cursor: pointer; font-weight: 600; }
ul { padding-left: 1.2rem; } li { overflow-wrap: anywhere; }
"""


def to_html(title: str, markdown: str, folder: Path) -> str:
    """The page, with links to the headings of level 2 on top.

    Args:
        title: of the browser's window.
        markdown: the report.
        folder: where the pictures are that it links to, each as PNG and as SVG.
    """
    parser = MarkdownIt("commonmark").enable("table")
    for name, rule in (("table_open", _scroll), ("table_close", _scrolled), ("image", _picture)):
        parser.add_render_rule(name, rule)
    env = {"folder": folder}
    tokens = parser.parse(markdown, env)
    body = parser.renderer.render(_with_links(tokens), parser.options, env)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{body}</main></body></html>\n"
    )


def _with_links(tokens: Sequence[Token]) -> list[Token]:
    """Headings get anchors; links to those of level 2, if they are several, follow the title."""
    links = []
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            text = _plain(tokens[number + 1])
            anchor = "".join(c if c.isalnum() else "-" for c in text.lower())
            token.attrSet("id", anchor)
            if token.tag == "h2":
                links.append(f'<a href="#{anchor}">{escape(text)}</a>')
    title = 3  # the tokens of a heading
    nav = f"<nav>{''.join(links)}</nav>\n" if len(links) > 1 else ""
    return [*tokens[:title], Token("html_block", "", 0, content=nav), *tokens[title:]]


def _plain(token: Token) -> str:
    return "".join(child.content for child in token.children or ())


def _scroll(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    return '<div class="scroll"><table>\n'


def _scrolled(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    return "</table></div>\n"


def _picture(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    caption = escape(_plain(tokens[index]))
    source = _inlined(env["folder"] / unquote(str(tokens[index].attrGet("src"))))
    return f'<img alt="{caption}" src="{source}"><span class="caption">{caption}</span>'


def _inlined(png: Path) -> str:
    picture, kind = png.with_suffix(".svg"), "svg+xml"
    if picture.stat().st_size > MAX_SVG:
        picture, kind = png, "png"
    return f"data:image/{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"
