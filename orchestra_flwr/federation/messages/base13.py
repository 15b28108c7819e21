"""Whole numbers from -6 to 6, seventeen of them in 64 bits: 3.76 bits each instead of 4.

A word is a number of seventeen digits in base 13, since 13^17 is just below 2^63. Half bytes
would hold sixteen levels at 4 bits, with which two ResNet-18 alone exceed 11 MiB.
"""

import torch
from torch import Tensor

LARGEST = 6  # the largest number; the smallest is its negative
BASE = 2 * LARGEST + 1
DIGITS = 17  # in a word
LOW = 9  # digits of a word's lower part; both parts fit float64, so that arithmetic is exact
SPLIT = BASE**LOW


def words_for(count: int) -> int:
    """How many words hold `count` numbers."""
    return -(-count // DIGITS)


def pack(numbers: Tensor) -> Tensor:
    """(rows, words) int64 of (rows, count) numbers from -6 to 6, of any type."""
    rows, count = numbers.shape
    digits = torch.full((rows, words_for(count) * DIGITS), float(LARGEST), dtype=torch.float64)
    digits[:, :count] += numbers
    digits = digits.view(-1, DIGITS)
    low = digits[:, :LOW] @ _powers(LOW)
    high = digits[:, LOW:] @ _powers(DIGITS - LOW)
    words: Tensor = high.long() * SPLIT + low.long()
    return words.view(rows, -1)


def unpack(words: Tensor, count: int) -> Tensor:
    """(rows, count) float32 of (rows, words) int64; from -6 to 6, whatever the words are."""
    high = torch.div(words, SPLIT, rounding_mode="floor")
    parts = [_digits(words - high * SPLIT, LOW), _digits(high, DIGITS - LOW)]
    return torch.cat(parts, -1).view(len(words), -1)[:, :count] - LARGEST


def _powers(count: int) -> Tensor:
    return torch.tensor([float(BASE**power) for power in range(count)], dtype=torch.float64)


def _digits(values: Tensor, count: int) -> Tensor:
    """(..., count) float32 digits, the lowest first."""
    # With the half no quotient is near a whole number, so that none is rounded across it.
    quotients = ((values.double() + 0.5)[..., None] / _powers(count + 1)).floor_()
    return (quotients[..., :-1] - BASE * quotients[..., 1:]).float()
