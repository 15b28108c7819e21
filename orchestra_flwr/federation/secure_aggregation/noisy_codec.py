"""Clipped updates as integers with each client's share of noise, and back."""

import hashlib
from collections.abc import Sequence

import numpy as np

from orchestra_flwr.federation.secure_aggregation.sum_codec import Numbers, SumCodec
from orchestra_flwr.privacy.discrete_gaussian import discrete_gaussian
from orchestra_flwr.privacy.noisy_sums import NoisySum
from orchestra_flwr.privacy.updates import clipped_update
from orchestra_flwr.seeding import ClientSeed


class NoisyCodec(SumCodec):
    """Clipped and covered by noise, for runs with `privacy.noise_multiplier`.

    The sum holds nothing but what the noise covers: no number of images, no loss. All clients
    count alike, and who is in the sum is known anyway.

    Args:
        size: values of an update.
        clip: its L2 norm, at most.
        noise_multiplier: as for :class:`NoisySum`; the attribute `noise`.
    """

    def __init__(self, size: int, clip: float, noise_multiplier: float) -> None:
        self._size, self._clip, self.noise = size, clip, noise_multiplier

    @property
    def layout(self) -> tuple[tuple[int, int], ...]:
        """32 bits a value."""
        return ((32, self._size),)

    def check(self, clients: int) -> None:
        """As :class:`NoisySum` does."""
        NoisySum(self.noise, clients, self._size)

    @np.errstate(over="ignore", invalid="ignore")  # `rounded` refuses it
    def encode(
        self,
        trained: np.ndarray,
        received: np.ndarray,
        numbers: Numbers,
        clients: int,
        seed: ClientSeed,
    ) -> list[np.ndarray]:
        """Clipped, rounded within the norm, and covered by this client's share of noise."""
        noisy = NoisySum(self.noise, clients, self._size)
        if not np.isfinite(trained).all():
            raise ValueError("the update is not finite")
        scaled = clipped_update(received, trained, self._clip)
        scaled *= noisy.scale(self._clip)
        generator = np.random.default_rng(seed.generator("wire").initial_seed())
        integers = noisy.rounded(scaled, generator)
        # Private centroids of the same round have noise from the same key in simulations.
        key = hashlib.blake2b(b"noisy sum", key=seed.noise_key(), digest_size=32).digest()
        integers += discrete_gaussian(key, noisy.bits, self._size)
        return [integers.astype("<i4", copy=False).view("<u4")]

    def decode(
        self,
        total: Sequence[np.ndarray],
        received: np.ndarray,
        clients: int,
        survivors: int,
        names: Sequence[str],
    ) -> tuple[np.ndarray, Numbers]:
        """All clients count alike; of numbers there are none."""
        noisy = NoisySum(self.noise, clients, self._size)
        update = total[0].view("<i4") / (noisy.scale(self._clip) * survivors)
        return (received + update).astype(np.float32), Numbers(survivors, 0, 0, {})
