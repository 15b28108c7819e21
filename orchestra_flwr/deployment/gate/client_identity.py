"""What the headers of a SuperNode's request say about it. Nothing here is verified."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

PUBLIC_KEY = b"flwr-public-key"
TIMESTAMP = b"flwr-timestamp"


def public_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The client's public key, PEM as Flower keeps it; empty where there is none."""
    try:
        return base64.b64decode(headers.get(PUBLIC_KEY, b""), validate=True)
    except binascii.Error:
        return b""


@lru_cache(maxsize=1024)
def fingerprint(key: bytes) -> str:
    """The fingerprint of a public key as `ssh-keygen -l` prints it.

    Args:
        key: PEM; what is no key gives "(unreadable)".
    """
    try:
        wire = serialization.load_pem_public_key(key).public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    except (ValueError, UnsupportedAlgorithm):
        return "(unreadable)"
    digest = hashlib.sha256(base64.b64decode(wire.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def clock_error(headers: Mapping[bytes, bytes]) -> float:
    """The seconds by which the client's clock is ahead of ours; 0 where it does not say."""
    try:
        signed = datetime.fromisoformat(headers.get(TIMESTAMP, b"").decode("ascii"))
        return (signed - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):  # no time, or one without a zone
        return 0.0
