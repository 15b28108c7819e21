"""Random bits for noise that must stay secret: a ChaCha20 key stream.

torch's and numpy's generators are not secret: their seeds are short, and a Mersenne Twister can be
reconstructed from its output. **Whoever knows or can guess the key can subtract the noise.**
"""

import numpy as np


class KeyStream:
    """Draws 64-bit words from a ChaCha20 key stream (RFC 8439), the same for the same key.

    Args:
        key: 32 bytes; no two streams for different data may share one.

    Raises:
        ValueError: the key has another length.
    """

    def __init__(self, key: bytes) -> None:
        # Imported here: a client that adds no noise needs no cryptography.
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        self._stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def words(self, count: int) -> np.ndarray:
        """The next (count,) words, uint64; how many are drawn at a time makes no difference."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")
