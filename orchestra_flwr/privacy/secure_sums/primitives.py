"""The cryptography of a sum: key pairs, sealed shares, masks. All of it from kept libraries."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import numpy as np

from orchestra_flwr.privacy.secure_sums.transcript import Layout

SEED_BYTES = 16  # of each shared secret: what pycryptodome's Shamir takes
TAIL = 0b10000111
MODULUS = (1 << 128) + TAIL  # of GF(2^128), as in pycryptodome
LOWEST = int.from_bytes(bytes([1]) * 255)  # the lowest bit of each byte
DIGITS = b"01" + bytes(254)
PIECE = 1 << 17  # bytes of a vector that are masked at a time: they stay in a core's cache
AT_ONCE = 64  # masks of which each piece gets its part
ZEROS = memoryview(bytes(PIECE))

if TYPE_CHECKING:  # a client of a run without sums needs no cryptography
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Vector = list[np.ndarray]  # unsigned integers, one array for each part of a layout


def public_key(seed: bytes) -> bytes:
    """The 32 bytes of the X25519 public key whose private key is made of a seed."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return _private_key(seed).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def agreement(seed: bytes) -> Callable[[bytes, bytes], bytes]:
    """A private key's side of agreements: X25519 (RFC 7748) and HKDF-SHA256 (RFC 5869).

    Returns:
        What makes of the other's public key of 32 bytes, and of a purpose, the 32 bytes that the
        two have in common; no two purposes share any. It raises a ValueError for a public key that
        is none: with it everybody would know the bytes.
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
    """By which a reconstructed seed is known to be right; says nothing of 16 random bytes."""
    return hashlib.sha256(about + seed).hexdigest()


def split(seed: bytes, needed: int, holders: Sequence[int]) -> dict[int, bytes]:
    """Shares of 16 bytes by their holders' numbers: any `needed` of them give the bytes back.

    Shamir (1979) over GF(2^128): fewer shares say nothing at all.
    """
    from Crypto.Protocol.SecretSharing import Shamir

    shares = Shamir.split(needed, len(holders), seed, ssss=False)
    return {holder: share for holder, (_, share) in zip(holders, shares, strict=True)}


def combined(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """The 16 bytes of which these are shares, each with its place among the holders, from 1.

    As pycryptodome's `Shamir.combine`, which takes hundreds of times as long, since it hides from
    an observer of its duration what the server has anyway. What comes out is compared with what its
    owner promised.
    """
    places = {place for place, _ in shares}
    count = -(-max(places) // 8) * 8  # of few sizes, so that most weights are there already
    lacking = {*range(1, count + 1)} - places
    total = 0
    for place, share in shares:
        weight = _weights(count)[place - 1]
        for other in lacking:  # it loses the factor other / (place + other)
            weight = _product(weight, place ^ other)
        total ^= _spread(_remainder(weight)) * _spread(int.from_bytes(share)) & LOWEST
    return _times(_gathered(total), _inverse(reduce(_times, lacking, 1))).to_bytes(SEED_BYTES)


@lru_cache(64)
def _weights(count: int) -> list[int]:
    """By which values at 1 to `count` are multiplied to give that at 0 (Lagrange)."""
    places = range(1, count + 1)
    top = reduce(_times, places)
    differences = (reduce(_product, (one ^ x for x in places if x != one), one) for one in places)
    return [_times(top, _inverse(_remainder(each))) for each in differences]


def _times(one: int, other: int) -> int:
    """The product in GF(2^128), of polynomials whose coefficients are bits."""
    return _gathered(_spread(one) * _spread(other) & LOWEST)


def _spread(value: int) -> int:
    """A byte for each bit.

    The product of two such integers has in each byte how many pairs of bits meet there, at most
    128: its lowest bit is the coefficient.
    """
    return int.from_bytes(f"{value:b}".encode()) & LOWEST


def _gathered(spread: int) -> int:
    """A bit for each byte, and what remains of them in the field."""
    return _remainder(int(spread.to_bytes(255).translate(DIGITS), 2))


def _product(one: int, other: int) -> int:
    """The product of two polynomials, of which the second is short."""
    product = 0
    while other:
        if other & 1:
            product ^= one
        one <<= 1
        other >>= 1
    return product


def _remainder(value: int) -> int:
    """Of a polynomial divided by that of the field."""
    while high := value >> 128:
        value ^= high << 128 ^ _product(high, TAIL)
    return value


def _inverse(value: int) -> int:
    """By which a value but 0 gives 1: Euclid's algorithm."""
    rest, other, factor, last = MODULUS, value, 0, 1
    while other != 1:
        shift = rest.bit_length() - other.bit_length()
        if shift < 0:
            rest, other, factor, last, shift = other, rest, last, factor, -shift
        rest, factor = rest ^ other << shift, factor ^ last << shift
        if rest == 1:
            return factor
    return last


def add_masks(vector: Vector, masks: Sequence[tuple[bytes, int]]) -> None:
    """Adds AES-256 key streams (counter mode, NIST SP 800-38A) to a vector, or subtracts them.

    Where processors have instructions for AES, it takes half the time of ChaCha20 key streams.

    Args:
        vector: changed in place; its integers wrap around.
        masks: of each a key, 32 secret bytes that mask nothing else, and a sign, 1 or -1.
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
    found = [(8 * part.itemsize, part.shape) for part in vector if part.dtype.kind == "u"]
    return found == [(bits, (size,)) for bits, size in layout] and len(found) == len(vector)


def _private_key(seed: bytes) -> X25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(derived(seed, b"private key"))


def derived(seed: bytes, purpose: bytes) -> bytes:
    """32 bytes of a secret (HKDF-SHA256); no two purposes share any."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"orchestra_flwr secure sum/" + purpose
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(seed)
