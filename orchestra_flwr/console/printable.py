"""Escaping names of files and clients for terminals, pictures and files."""

import re

# Control characters, line separators, marks that reverse the direction of text, and the characters
# that stand in Python for bytes that are not UTF-8.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escapes what is not printable: ESC as \x1b, a byte that is not UTF-8 as \xff.

    Others choose the names of files and clients, and a terminal obeys the control characters in
    them. Letters of all languages stay.
    """
    return UNSAFE.sub(_escaped, text)


def print_line(text: str) -> None:
    """Prints a line for a person at once, also into a pipe or file."""
    print(printable(text), flush=True)


def printable_lines(text: str) -> str:
    """Escapes each line of a text by :func:`printable`."""
    return "\n".join(map(printable, text.split("\n")))


def _escaped(character: re.Match[str]) -> str:
    code = ord(character[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file's name, as Python reads it
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
