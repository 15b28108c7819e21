"""The cryptography of a sum: key pairs, sealed shares, masks; ciphers are those of a library."""

import hashlib
import math
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from orchestra_flwr.privacy.secure_sums.transcript import Layout

SEED_BYTES = 16  # of each shared secret
PRIME = 2**130 - 5  # of shares: a little more than a secret (Poly1305's, RFC 8439)
SHARE_BYTES = 17
PIECE = 1 << 17  # bytes of a vector that are masked at a time: they stay in a core's cache
AT_ONCE = 64  # masks that are applied to a piece in one pass
ZEROS = memoryview(bytes(PIECE))

if TYPE_CHECKING:  # a client of a run without sums needs no cryptography
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Vector = list[np.ndarray]  # unsigned integers, one array for each part of a layout


def public_key(seed: bytes) -> bytes:
    """The 32 bytes of the X25519 public key whose private key is made from a seed."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return _private_key(seed).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def agreement(seed: bytes) -> Callable[[bytes, bytes], bytes]:
    """A private key's side of agreements: X25519 (RFC 7748) and HKDF-SHA256 (RFC 5869).

    Returns:
        A function of the other's public key (32 bytes) and a purpose, which returns the 32 bytes
        that the two have in common for this purpose alone. It raises a ValueError for an invalid
        public key, with which everybody would know the bytes.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    private = _private_key(seed)

    def agreed(other: bytes, purpose: bytes) -> bytes:
        return derived(private.exchange(X25519PublicKey.from_public_bytes(other)), purpose)

    return agreed


def sealed(key: bytes, text: bytes, about: bytes) -> bytes:
    """ChaCha20-Poly1305 (RFC 8439) under a key that is used this once; `about` is bound to it."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(bytes(12), text, about)


def opened(key: bytes, box: bytes, about: bytes) -> bytes:
    """What :func:`sealed` sealed.

    Raises:
        ValueError: it was sealed by somebody else, for another purpose, or changed.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), box, about)
    except InvalidTag:
        raise ValueError("a sealed share was changed, or is none of this sum's") from None


def commitment(seed: bytes, about: bytes) -> str:
    """A digest to check a reconstructed seed by; it reveals nothing of 16 random bytes."""
    return hashlib.sha256(about + seed).hexdigest()


def split(seed: bytes, needed: int, holders: Sequence[int]) -> dict[int, bytes]:
    """Shares of a secret of 16 bytes by their holders' numbers, from 1; each has 17 bytes.

    Any `needed` of them give it back, fewer reveal nothing. Shamir, "How to Share a Secret"
    (1979), over the integers modulo a prime: values of a polynomial whose other coefficients are
    drawn at random. pycryptodome's, over GF(2^128), takes a hundred times as long.
    """
    drawn = [secrets.randbelow(PRIME) for _ in range(needed - 1)]

    def value(place: int) -> int:
        total = 0
        for coefficient in (*drawn, int.from_bytes(seed)):
            total = (total * place + coefficient) % PRIME
        return total

    return {holder: value(holder).to_bytes(SHARE_BYTES) for holder in holders}


def combined(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """The 16 bytes of which these are shares, each with its holder's number.

    Lagrange's polynomial at 0, summed as fractions. Wrong shares give other bytes; the result is
    compared with what its owner promised.
    """
    above, below = 0, 1
    for place, share in shares:
        weight = place * math.prod(other - place for other, _ in shares if other != place) % PRIME
        above = (above * weight + int.from_bytes(share) * below) % PRIME
        below = below * weight % PRIME
    whole = above * math.prod(place for place, _ in shares) * pow(below, -1, PRIME) % PRIME
    return whole.to_bytes(SHARE_BYTES)[-SEED_BYTES:]


def add_masks(vector: Vector, masks: Sequence[tuple[bytes, int]]) -> None:
    """Adds AES-256 key streams (counter mode, NIST SP 800-38A) to a vector, or subtracts them.

    Where processors have instructions for AES, it takes half the time of ChaCha20 key streams.

    Args:
        vector: changed in place; its integers wrap around.
        masks: pairs of a key, 32 secret bytes that mask nothing else, and a sign, 1 or -1.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    buffer = bytearray(PIECE)
    for first in range(0, len(masks), AT_ONCE):
        streams = [
            (Cipher(AES(key), CTR(bytes(16))).encryptor(), np.add if sign > 0 else np.subtract)
            for key, sign in masks[first : first + AT_ONCE]
        ]
        for part in vector:
            step = PIECE // part.itemsize
            for start in range(0, len(part), step):
                piece = part[start : start + step]
                mask = np.frombuffer(buffer, part.dtype, len(piece))
                for stream, change in streams:
                    stream.update_into(ZEROS[: piece.nbytes], buffer)
                    change(piece, mask, out=piece)


def zeros(layout: Layout) -> Vector:
    """A vector of zeros."""
    return [np.zeros(size, np.dtype(f"<u{bits // 8}")) for bits, size in layout]


def fits(vector: Vector, layout: Layout) -> bool:
    """Whether a vector has the layout that was agreed on."""
    parts = [(8 * part.itemsize, part.shape) for part in vector if part.dtype.kind == "u"]
    return parts == [(bits, (size,)) for bits, size in layout] and len(parts) == len(vector)


def _private_key(seed: bytes) -> "X25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(derived(seed, b"private key"))


def derived(seed: bytes, purpose: bytes) -> bytes:
    """32 bytes derived from a secret for one purpose alone (HKDF-SHA256)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"orchestra_flwr secure sum/" + purpose
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(seed)
