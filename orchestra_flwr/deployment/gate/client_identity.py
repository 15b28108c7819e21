"""What the headers of a SuperNode's request say about it; only :func:`is_signed` verifies it."""

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from orchestra_flwr.deployment.keys.client_keys import key_fingerprint
from orchestra_flwr.flower.fleet import MAX_AGE, MAX_AHEAD

PUBLIC_KEY = b"flwr-public-key"
SIGNATURE = b"flwr-signature"
TIMESTAMP = b"flwr-timestamp"


def public_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The client's public key, in PEM format as Flower stores it; empty where there is none."""
    try:
        return base64.b64decode(headers.get(PUBLIC_KEY, b""), validate=True)
    except binascii.Error:
        return b""


@lru_cache(maxsize=1024)
def fingerprint(key: bytes) -> str:
    """The fingerprint of a key (PEM) as `ssh-keygen -l` prints it; "(unreadable)" if it is none."""
    try:
        return key_fingerprint(load_pem_public_key(key))
    except (ValueError, UnsupportedAlgorithm):
        return "(unreadable)"


def clock_error(headers: Mapping[bytes, bytes]) -> float:
    """The seconds by which the client's clock is ahead of ours; 0 where it does not say."""
    try:
        signed = datetime.fromisoformat(headers.get(TIMESTAMP, b"").decode("ascii"))
        return (signed - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):  # no time, or one without a zone
        return 0.0


def has_good_clock(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a SuperLink accepts what is signed at the client's time."""
    return -MAX_AGE < clock_error(headers) < MAX_AHEAD


def why_refused(who: str, headers: Mapping[bytes, bytes], status: int) -> str:
    """Why the SuperLink refused a client, in words: its answers name no reason."""
    ahead = clock_error(headers)
    if status == 401 and not has_good_clock(headers):
        way, limit = ("ahead", MAX_AHEAD) if ahead > 0 else ("behind", MAX_AGE)
        return f"{who}: its clock is {abs(ahead):.0f} s {way}, at most {limit:g} are allowed"
    if status == 401:
        return f"{who}: its signature does not fit, or the SuperLink no longer knows it"
    return (
        f"{who} is connected already: a second client with that key, or one that was killed "
        "and came back within a minute (it may try again then)"
    )


def is_signed(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the claimed key has signed the time, lately, as a SuperLink demands.

    Checked against Flower 1.41 and 1.42: `flwr.superlink.routers.fleet.node_auth`.
    """
    try:
        key = load_pem_public_key(public_key(headers))
        signature = base64.b64decode(headers.get(SIGNATURE, b""), validate=True)
        if not isinstance(key, EllipticCurvePublicKey):
            return False
        key.verify(signature, headers.get(TIMESTAMP, b""), ECDSA(SHA256()))
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):  # binascii.Error is a ValueError
        return False
    return has_good_clock(headers)
