"""Random generators derived from (run seed, purpose, round, client), without global state.

Different purposes, rounds and clients have different streams, independent of the order in which
clients run.
"""

import hashlib
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

_TORCHS_OWN = threading.RLock()  # clients in threads take turns with torch's default generator


def derive(seed: int, purpose: str, *path: int | str) -> int:
    """A 63-bit seed for one purpose, e.g. ``derive(run_seed, "client", round, client)``."""
    text = "/".join([str(seed), purpose, *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def torch_generator(
    seed: int, purpose: str, *path: int | str, device: str | torch.device = "cpu"
) -> torch.Generator:
    """A torch generator on `device` for one purpose."""
    return torch.Generator(device).manual_seed(derive(seed, purpose, *path))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's default CPU generator for the block, and then restores its state.

    `torch.manual_seed` would also record the call for GPUs, with a stack trace that takes
    milliseconds; networks are built on the CPU.
    """
    with _TORCHS_OWN, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def numpy_generator(seed: int, purpose: str, *path: int | str) -> np.random.Generator:
    """A numpy generator for one purpose."""
    return np.random.default_rng(derive(seed, purpose, *path))


def drawn(count: int, limit: int, seed: int, purpose: str) -> NDArray[np.int64]:
    """The positions of all of `count` things, or of `limit` of them at random, ascending."""
    if count <= limit:
        return np.arange(count)
    return np.sort(numpy_generator(seed, purpose).choice(count, limit, replace=False))


@dataclass(frozen=True)
class ClientSeed:
    """All randomness of one client in one stage of a round, on any machine or worker."""

    seed: int  # of the run, which server and clients have
    round: int
    client: str
    secret_noise: bool = False  # whether the noise's key must be a secret, as on a real client
    stage: int = 0  # of the round; most have only one

    @property
    def when(self) -> int | str:
        """The round, with the stage if it is not the first."""
        return f"{self.round}.{self.stage}" if self.stage else self.round

    def generator(self, purpose: str, device: str | torch.device = "cpu") -> torch.Generator:
        """A generator for one purpose, such as "augment" or "shuffle"."""
        return torch_generator(self.seed, purpose, self.when, self.client, device=device)

    def noise_key(self) -> bytes:
        """32 bytes for noise: secret ones of the system, or in simulations derived ones."""
        if self.secret_noise:
            return secrets.token_bytes(32)
        text = f"{self.seed}/noise/{self.when}/{self.client}"
        return hashlib.blake2b(text.encode(), digest_size=32).digest()
