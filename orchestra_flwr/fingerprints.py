"""Hashes of texts and files."""

import hashlib
from pathlib import Path


def fingerprint_of(content: str | bytes, digits: int = 16) -> str:
    """The first hexadecimal digits of the content's SHA-256; 16 do if nobody seeks collisions."""
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:digits]


def file_sha256(file: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
