"""Names from elsewhere as text that a terminal, a picture and a file can show as it is."""

from __future__ import annotations

import re

# Control characters, line separators, marks that reverse the direction of what follows, and what
# stands for bytes that are no UTF-8.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The same text with everything escaped that is not to be seen: ESC as \x1b, a lone byte \xff.

    Names of files, of folders and of clients are chosen by others, and a terminal obeys what is in
    them. Letters of any language stay.
    """
    return UNSAFE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """As :func:`printable`, but the text keeps its lines."""
    return "\n".join(map(printable, text.split("\n")))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file's name, as Python reads it
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
