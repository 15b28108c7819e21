"""Noise for private clustering from a secret key (:mod:`orchestra_flwr.privacy.key_stream`).

Floating point: uniform numbers have 52 bits, so each draw is within about 2^-52 in total variation
of the distribution that the accounting assumes, and no draw lies in tails rarer than that. Gaussian
noise is rounded to the grid on which the sums lie (see `private_kmeans`), which closes the
classical leak through the least significant bits of floats (Mironov, 2012).
"""

import math

import torch
from torch import Tensor

from orchestra_flwr.privacy.key_stream import KeyStream


class NoiseStream:
    """Draws noise as tensors from a key stream.

    Args:
        key: 32 bytes; no two streams of different data may share one.
    """

    def __init__(self, key: bytes) -> None:
        self._stream = KeyStream(key)

    def uniform(self, *shape: int) -> Tensor:
        """Float64 in (0, 1): odd multiples of 2^-53, so never 0 or 1."""
        words = self._stream.words(math.prod(shape))
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
