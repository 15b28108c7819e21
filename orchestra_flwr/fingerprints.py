"""Short names for contents: equal for equal contents, different for all others."""

from __future__ import annotations

import hashlib
from pathlib import Path


def fingerprint_of(content: str | bytes, digits: int = 16) -> str:
    """The first hexadecimal digits of the content's SHA-256.

    Args:
        content: text (paths in it may be undecodable) or bytes.
        digits: how many; 16 are enough where nobody tries to find two equal ones.
    """
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:digits]


def file_sha256(file: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal; it is read piece by piece.

    Raises:
        OSError: it cannot be read.
    """
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
