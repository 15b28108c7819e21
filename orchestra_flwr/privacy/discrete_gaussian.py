"""Draws from the discrete Gaussian: integers x with probabilities like exp(-x^2 / 2 s^2).

Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020, arXiv
2004.00010), draw it exactly, by rejection from integers of a simpler distribution. So does this,
with proposals made of random bits alone, for deviations s that are powers of two. Where a random
number is too near to the probability of acceptance for float64 to decide, 128 bits of both do. What
is drawn is within 2^-120 (total variation) of the distribution. No value reaches 39 deviations.
"""

import hashlib
from decimal import Context, Decimal

import numpy as np

from orchestra_flwr.privacy.key_stream import KeyStream

FARTHEST = 39  # deviations, which no value reaches
MAX_BITS = 24  # of a deviation: 39 of a word's 64 are left for the multiple of it
CHUNK = 1 << 16  # proposals that are made at a time
LEVEL = 0.75  # of acceptance: 2^v exp(-x^2 / 2) for v <= x < v + 1 is at most 1.22, at x = 1
UNSURE = 2.0**-45  # far above float64's error in the probability of acceptance
EXACT = Context(prec=60)


def discrete_gaussian(key: bytes, bits: int, count: int) -> np.ndarray:
    """(count,) independent values in int32 of the deviation 2^bits, the same for the same key.

    One core makes 11 million a second. The key has 32 secret bytes; draw nothing else from it.

    Raises:
        ValueError: bits that are not from 0 to 24.
    """
    if not 0 <= bits <= MAX_BITS:
        raise ValueError(f"a deviation of 2^{bits}: it must be from 2^0 to 2^{MAX_BITS}")
    stream = KeyStream(key)
    digits = KeyStream(hashlib.blake2b(b"digits", key=key, digest_size=32).digest())
    values, filled = np.empty(count, np.int32), 0
    while filled < count:
        accepted = _accepted(stream, digits, bits)[: count - filled]
        values[filled : filled + len(accepted)] = accepted
        filled += len(accepted)
    return values


def _accepted(stream: KeyStream, digits: KeyStream, bits: int) -> np.ndarray:
    """Those of CHUNK proposals that become values.

    A proposal is plus or minus (v 2^bits + u): u uniform below 2^bits, and v with probability
    2^-(v + 1), as the number of 0s before the first 1 among random bits. Half are accepted.
    """
    words = stream.words(CHUNK)
    offset = (words & np.uint64(2**bits - 1)).astype(np.int64)
    negative = (words >> np.uint64(bits)) & np.uint64(1) == 1
    rest = (words >> np.uint64(bits + 1)).astype(np.int64)
    multiple = np.frexp((rest & -rest).astype(np.float64))[1].astype(np.int64) - 1  # -1: no 1
    size = (multiple << bits) + offset
    twice = negative & (size == 0)  # or there would be two zeros
    chance = LEVEL * np.ldexp(np.exp(-0.5 * np.square(size * 2.0**-bits)), multiple)
    chance[(multiple < 0) | (multiple >= FARTHEST) | twice] = -1  # never
    drawn = stream.words(CHUNK)
    at_least = (drawn >> np.uint64(11)) * 2.0**-53
    accepted = at_least < chance
    for i in np.flatnonzero((chance >= 0) & (np.abs(at_least - chance) < UNSURE)):
        exact = (int(drawn[i]) << 64) + int(digits.words(1)[0])
        accepted[i] = exact < _chance(int(size[i]), int(multiple[i]), bits)
    values: np.ndarray = np.where(negative, -size, size)[accepted]
    return values


def _chance(size: int, multiple: int, bits: int) -> Decimal:
    """The probability of acceptance times 2^128, to 60 digits."""
    exponent = EXACT.divide(Decimal(-size * size), Decimal(2 ** (2 * bits + 1)))
    return EXACT.multiply(Decimal(int(LEVEL * 2**128) << multiple), EXACT.exp(exponent))
