"""One stream of bits behind all noise, and what is made of it: the same bits always."""

import hashlib
import math

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from orchestra_flwr.clustering.noise import NoiseStream
from orchestra_flwr.privacy.key_stream import KeyStream
from orchestra_flwr.privacy.updates import standard_normals

KEY = bytes(range(32))


def words(key, count):
    """ChaCha20 as the library writes it: 64-bit words, little-endian."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    stream = cipher.update(bytes(8 * count))
    return [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(count)]


def test_words_are_chacha20s():
    """The first block of RFC 8439, A.1, test vector 1: key, nonce and counter are all zeros."""
    first = KeyStream(bytes(32)).words(2)
    assert first.tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert KeyStream(KEY).words(100).tolist() == words(KEY, 100)
    assert first.dtype == np.uint64


def test_how_many_are_drawn_at_a_time_makes_no_difference():
    stream = KeyStream(KEY)
    parts = [stream.words(count) for count in (1, 0, 7, 1000)]
    np.testing.assert_array_equal(np.concatenate(parts), KeyStream(KEY).words(1008))


@pytest.mark.parametrize("key", [b"", bytes(16), bytes(33)])
def test_another_key_length_is_refused(key):
    with pytest.raises(ValueError, match="key"):
        KeyStream(key)


def test_noise_of_clustering_is_made_of_these_words():
    """Odd multiples of 2^-53; both functions go on where the stream stands."""
    stream, drawn = NoiseStream(KEY), words(KEY, 6 + 8 + 10)
    uniform = [((word >> 12) + 0.5) * 2.0**-52 for word in drawn]
    assert stream.uniform(2, 3).flatten().tolist() == uniform[:6]
    radius, turn = torch.tensor(uniform[6:14], dtype=torch.float64).view(2, 4)
    gaussian = (-2 * radius.log()).sqrt() * (2 * math.pi * turn).cos()
    torch.testing.assert_close(stream.gaussian(4), gaussian, rtol=1e-12, atol=0)
    first, second = torch.tensor(uniform[14:], dtype=torch.float64).view(2, 5)
    laplace = (first.log() / -0.1).floor() - (second.log() / -0.1).floor()
    assert stream.discrete_laplace(5, 0.1).tolist() == laplace.tolist()


def test_noise_of_updates_is_made_of_these_words():
    """In pairs, cosine and sine of the same turn, from a stream of the round's own."""
    key = hashlib.blake2b(b"noise/3", key=KEY, digest_size=32).digest()
    uniform = [((word >> 11) + 1.0) * 2.0**-53 for word in words(key, 10)]
    expected = []
    for radius, turn in zip(uniform[0::2], uniform[1::2], strict=True):
        length = math.sqrt(-2 * math.log(radius))
        expected += [length * math.cos(2 * math.pi * turn), length * math.sin(2 * math.pi * turn)]
    np.testing.assert_allclose(standard_normals(KEY, 3, 9), expected[:9], rtol=1e-12)
