import pytest
from markdown_it import MarkdownIt

from orchestra_flwr.experiments.report import markdown


@pytest.mark.parametrize(
    "text",
    [
        "a_long_name of _one_ run_", "*not* **strong**", "1. first", "- a line", "# 1", "> 2",
        "__init__", "a __b__ c", "run __a_b__", "10. ten", "123456789) nine", "1234567890. long",
        "11.", "-", "---", "C #",
        "<b>bold</b> &lt;", r"back\slash", "a | b", "[link](to)", "`code`", "~~gone~~", "+1.5",
    ],
)  # fmt: skip
def test_text_is_shown_as_it_is(text):
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for written in (
        markdown.escape(text), markdown.quiet(text), markdown.warning(text),
        markdown.items([text]), markdown.heading(2, text), markdown.Table((text,), ()).markdown(),
    ):  # fmt: skip
        (inline,) = [token for token in parser.parse(written) if token.type == "inline"]
        shown = [child for child in inline.children if child.type not in ("em_open", "em_close")]
        shown = [child for child in shown if not child.type.startswith("strong_")]
        assert {child.type for child in shown} == {"text"}
        assert "".join(child.content for child in shown) == text


def test_code_stays_code_whatever_is_in_it():
    (token,) = MarkdownIt("commonmark").parse(markdown.code("a\n```\n<b>\n````\nb"))
    assert token.type == "fence" and token.content == "a\n```\n<b>\n````\nb\n"


def test_a_name_with_a_line_break_stays_in_its_row():
    table = markdown.Table(("run", "kNN"), (("new\nline", "12 %"),)).markdown()
    assert table.splitlines()[2:] == [r"| new\\x0aline | 12 % |"]
