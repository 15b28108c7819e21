import pytest

from orchestra_flwr.console.printable import printable, printable_lines


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        ("\x9b2J", r"\x9b2J"),  # the same sequence in one byte
        ("a\nb\r\tc\x7f", r"a\x0ab\x0d\x09c\x7f"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), r"caf\xe9"),
        ("\ud800", r"\ud800"),
        ("evil\u202egnp.exe", r"evil\u202egnp.exe"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(name, shown):
    assert printable(name) == shown
    shown.encode()


@pytest.mark.parametrize("name", ["Mädchen", "写真/猫", "שלום", "a\\b", "$x_1$", "👩\u200d🔬"])
def test_letters_of_any_language_stay(name):
    assert printable(name) == name


def test_a_text_may_keep_its_lines():
    assert printable_lines("a\n\x1bb\n") == "a\n\\x1bb\n"
