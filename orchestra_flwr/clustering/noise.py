"""Noise for differential privacy, reproducible from a key.

torch's own generator, a Mersenne Twister, can be read back from its output and keeps 32 bits of
its seed, so noise comes from a ChaCha20 stream. It is as secret as its key and no more: **who
knows or can guess the key can subtract the noise.**

Floating point: uniform numbers have 52 bits, so each draw is within about 2^-52 in total variation
of the distribution that the accounting assumes, and no draw lies in tails rarer than that. Gaussian
noise is rounded to the grid on which the sums lie (see `private`), which closes the classical
leak through the least bits of floats (Mironov, 2012).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


class NoiseStream:
    """Draws noise from a ChaCha20 stream.

    Args:
        key: 32 bytes; no two streams of different data may share one.
    """

    def __init__(self, key: bytes) -> None:
        # A client that shares no private centroids does without.
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        self._stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def uniform(self, *shape: int) -> Tensor:
        """Float64 in (0, 1): odd multiples of 2^-53, so never 0 or 1."""
        words = np.frombuffer(self._stream.update(bytes(8 * math.prod(shape))), dtype="<u8")
        return torch.from_numpy(((words >> 12) + 0.5) * 2.0**-52).reshape(shape)

    def gaussian(self, *shape: int) -> Tensor:
        """Standard normal float64 values (Box and Muller, 1958)."""
        size = math.prod(shape)
        radius = (-2 * self.uniform(size).log()).sqrt()
        return (radius * (2 * math.pi * self.uniform(size)).cos()).reshape(shape)

    def discrete_laplace(self, size: int, a: float) -> Tensor:
        """(size,) integers with probabilities proportional to exp(-a |x|).

        The difference of two geometric variables, each by inversion: floor(log(uniform) / -a).
        """
        geometric = (self.uniform(2, size).log() / -a).floor().long()
        return geometric[0] - geometric[1]
