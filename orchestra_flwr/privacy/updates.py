"""Client-level differential privacy of the averaged encoders: clipping, noise and its epsilon.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018, with
cohorts of a fixed size. A whole client is protected: the averaged encoders are nearly as likely
whatever one client sent. The server is trusted: it sees every update (clipped, without noise) and
adds the noise. Other contributions of clients (such as centroids) and the metrics in the server's
run folder are not covered.

Epsilon holds only while the noise's key, the cohorts and the clients' replies stay on the server.
So noise and cohorts are drawn from a secret key of the run, never from `seed`, which every client
receives. What the rounding of floating point may reveal (Mironov, "On Significance of the Least
Significant Bits for Differential Privacy", CCS 2012) is not accounted for.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from orchestra_flwr.privacy.key_stream import KeyStream

CHUNK = 1 << 16  # pairs of normals that are made at a time
MIN_NOISE = 1e-6  # in units of the clip: with less, accounting takes an overflow for epsilon 0
BLOCK = 1 << 16  # values of an update that are turned into float64 at a time


def clipped_state(received: np.ndarray, trained: np.ndarray, clip: float) -> np.ndarray:
    """The state that a client sends: its update has an L2 norm of at most `clip`.

    Up to rounding to float32; the server clips again in float64 (:func:`clipped_update`).

    Args:
        received: (size,) float32 state that the server sent.
        trained: (size,) float32 state after training.

    Returns:
        (size,) float32; `trained` itself where it is within the bound.
    """

    def update(part: slice) -> np.ndarray:
        difference: np.ndarray = np.subtract(trained[part], received[part], dtype=np.float64)
        return difference

    norm = l2_norm(map(update, _blocks(len(trained))))
    if norm <= clip:
        return trained
    clipped = np.empty_like(trained)
    for part in _blocks(len(trained)):
        clipped[part] = received[part] + update(part) * (clip / norm)
    return clipped


def clipped_update(sent: np.ndarray, returned: np.ndarray, clip: float) -> np.ndarray:
    """The difference of two states, scaled to an L2 norm of at most `clip`.

    Args:
        sent: (size,) float32 state.
        returned: (size,) float32 state that a client sent back, finite.

    Returns:
        (size,) float64.
    """
    update: np.ndarray = np.subtract(returned, sent, dtype=np.float64)
    norm = l2_norm(update[part] for part in _blocks(len(update)))
    if norm > clip:
        update *= clip / norm
    return update


def l2_norm(blocks: Iterable[np.ndarray]) -> float:
    """The L2 norm of a float64 vector in blocks.

    Without BLAS, whose order of additions depends on the processor and the number of threads.
    """
    return math.sqrt(sum(float(np.square(block).sum()) for block in blocks))


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, size, BLOCK))


def standard_normals(key: bytes, round_: int, count: int) -> np.ndarray:
    """(count,) independent standard normals in float64, the same for the same key and round.

    A ChaCha20 key stream through the transform of Box and Muller (1958). The key has 16 to 64
    secret bytes; rounds never share a stream.
    """
    digest = hashlib.blake2b(f"noise/{round_}".encode(), key=key, digest_size=32).digest()
    stream = KeyStream(digest)
    normals = np.empty(count + count % 2)
    for start in range(0, len(normals), 2 * CHUNK):
        part = normals[start : start + 2 * CHUNK]
        uniform = ((stream.words(len(part)) >> np.uint64(11)) + 1.0) * 2.0**-53  # in (0, 1]
        radius, turn = np.sqrt(-2 * np.log(uniform[0::2])), 2 * np.pi * uniform[1::2]
        part[0::2], part[1::2] = radius * np.cos(turn), radius * np.sin(turn)
    return normals[:count]


def add_noisy_round(drawn: Iterable[Sequence[int]], clients: int, cohort: int) -> list[list[int]]:
    """`drawn` with one more round, in which `cohort` of `clients` clients were asked.

    It holds [clients, cohort, rounds] of every kind of round so far.
    """
    rounds = {(n, m): count for n, m, count in drawn}
    rounds[clients, cohort] = rounds.get((clients, cohort), 0) + 1
    return [[n, m, count] for (n, m), count in rounds.items()]


def composed_epsilon(
    noise_multiplier: float, drawn: Iterable[Sequence[int]], delta: float
) -> float:
    """Epsilon at `delta` of all rounds together, for exchanging one client for any other.

    In each round a cohort of a fixed size is drawn without replacement and every client of it
    adds a vector of at most the norm C to the sum (one that fails adds nothing). Exchanging a
    client can turn its vector around, so the sum changes by up to 2 C, and noise of
    `noise_multiplier` C is only half as much in units of that sensitivity. dp_accounting's
    replace-one events count in those units.

    Renyi accounting with the bound for sampling without replacement of Wang, Balle and
    Kasiviswanathan ("Subsampled Renyi Differential Privacy and Analytical Moments Accountant",
    AISTATS 2019, Theorem 27). For large cohorts that bound is worse than none at all; drawing
    never costs privacy, so the smaller of both holds.

    Args:
        noise_multiplier: standard deviation of the noise in the sum, in units of the clip.
        drawn: (clients, cohort, rounds) for every kind of round.
        delta: of the guarantee; to mean anything it is far below 1 / clients.

    Returns:
        Epsilon; 0 without rounds, infinite without noise or with next to none.
    """
    rounds = tuple((clients, cohort, count) for clients, cohort, count in drawn)
    if not rounds:
        return 0.0
    if noise_multiplier < MIN_NOISE:
        return math.inf
    from dp_accounting.rdp import compute_epsilon

    kinds = [
        (count, *_renyi(noise_multiplier, clients, cohort)) for clients, cohort, count in rounds
    ]
    orders = kinds[0][1]
    sampled = sum(count * divergences for count, _, divergences, _ in kinds)
    unsampled = sum(count * divergences for count, *_, divergences in kinds)
    return float(min(compute_epsilon(orders, total, delta)[0] for total in (sampled, unsampled)))


@lru_cache(maxsize=4096)  # half a second each; a run has one for each number of clients there
def _renyi(
    noise_multiplier: float, clients: int, cohort: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Orders, and the Renyi divergences of one round: of a drawn cohort, and of a known one."""
    import dp_accounting  # takes seconds, and only noisy runs need it
    from dp_accounting.rdp import RdpAccountant

    noise = dp_accounting.GaussianDpEvent(noise_multiplier / 2)
    draw = dp_accounting.SampledWithoutReplacementDpEvent(clients, cohort, noise)
    sampled = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    unsampled = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    sampled.compose(draw)
    unsampled.compose(noise)
    return sampled.orders, sampled.rdp, unsampled.rdp
