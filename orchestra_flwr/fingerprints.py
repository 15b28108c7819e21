"""Short names for contents: equal for equal contents, different for all others."""

from __future__ import annotations

import hashlib


def fingerprint_of(content: str | bytes, digits: int = 16) -> str:
    """The first hexadecimal digits of the content's SHA-256.

    Args:
        content: text (paths in it may be undecodable) or bytes.
        digits: how many; 16 are enough where nobody tries to find two equal ones.
    """
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:digits]
