"""A report's Markdown as one self-contained HTML page: no scripts, no other files, no network."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

MAX_SVG = 300_000  # bytes; pictures of thousands of points are smaller as PNG
STYLE = Path(__file__).with_name("report.css")


def to_html(title: str, markdown: str, folder: Path) -> str:
    """The page, with links to the headings of level 2 at the top.

    The pictures that the Markdown links to are in the folder, each as PNG and as SVG.
    """
    parser = MarkdownIt("commonmark").enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("image", _picture)
    env = {"folder": folder}
    tokens = parser.parse(markdown, env)
    body = parser.renderer.render(_with_links(tokens), parser.options, env)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE.read_text()}</style></head>\n"
        f"<body><main>\n{body}</main></body></html>\n"
    )


def _with_links(tokens: Sequence[Token]) -> list[Token]:
    """Gives headings anchors; links to those of level 2, if several, follow the title."""
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


def _picture(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    caption = escape(_plain(tokens[index]))
    source = _inlined(env["folder"] / unquote(str(tokens[index].attrGet("src"))))
    return f'<img alt="{caption}" src="{source}"><span class="caption">{caption}</span>'


def _inlined(png: Path) -> str:
    picture, kind = png.with_suffix(".svg"), "svg+xml"
    if picture.stat().st_size > MAX_SVG:
        picture, kind = png, "png"
    return f"data:image/{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"
