"""Clipped and noisy integers: their mean, their noise, and where it is drawn from."""

import hashlib

import numpy as np
import pytest

from orchestra_flwr.federation.secure_aggregation.sum_codec import NoisyCodec, Numbers, Start
from orchestra_flwr.privacy.discrete_gaussian import discrete_gaussian
from orchestra_flwr.privacy.noisy_sums import NoisySum
from orchestra_flwr.seeding import ClientSeed

SIZE, CLIP, CLIENTS = 5000, 2.0, 6
NUMBERS = Numbers(1.0, 77, 0, {"loss/a": 3.0})
RECEIVED = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
START = Start(RECEIVED, CLIENTS)


def encoded(state, client="0", noise=1.0, secret=False, round_=1):
    made, seed = NoisyCodec(SIZE, CLIP, noise), ClientSeed(0, round_, client, secret)
    return made.encode(state, START, NUMBERS, seed)


def moved(by):
    """A state whose update has this norm."""
    update = np.random.default_rng(1).normal(size=SIZE)
    return (RECEIVED + by * update / np.linalg.norm(update)).astype(np.float32)


def test_the_mean_is_that_of_clipped_updates():
    """All within noise that hardly is any; one that exceeds the clip is as long as the clip."""
    made = NoisyCodec(SIZE, CLIP, 1e-3)
    lengths = (0.5, 1.0, 2.0, 100.0)
    parts = [encoded(moved(by), str(by), 1e-3) for by in lengths]
    total = [np.sum([part for (part,) in parts], axis=0, dtype=np.uint32)]
    mean, numbers = made.decode(total, START, 4, ())
    expected = moved((0.5 + 1 + 2 + 2) / 4)
    assert mean.dtype == np.float32 and np.linalg.norm(mean - expected) < 0.05
    assert (numbers.weight, numbers.images, numbers.metrics) == (4, 0, {})


def test_without_its_noise_a_client_is_within_the_bound():
    """The noise is the discrete Gaussian of its key, and all that is added."""
    plan = NoisySum(1.0, CLIENTS, SIZE)
    (integers,) = encoded(moved(1e6))
    key = ClientSeed(0, 1, "0").noise_key()
    stream_key = hashlib.blake2b(b"noisy sum", key=key, digest_size=32).digest()
    rest = integers.view(np.int32) - discrete_gaussian(stream_key, plan.bits, SIZE)
    assert 0.9 * plan.bound < np.square(rest, dtype=np.int64).sum() <= plan.bound
    shared = discrete_gaussian(key, plan.bits, SIZE)  # of private centroids, in simulations
    assert abs(np.corrcoef(integers.view(np.int32), shared)[0, 1]) < 0.06


def test_noise_follows_from_the_seed_in_simulations_and_from_the_system_elsewhere():
    first = encoded(RECEIVED)
    assert np.array_equal(first, encoded(RECEIVED))
    secret = [encoded(RECEIVED, secret=True) for _ in range(2)]
    others = [encoded(RECEIVED, "1"), encoded(RECEIVED, round_=2), *secret]
    noise = [encoding[0].view(np.int32).astype(float) for encoding in (first, *others)]
    assert np.abs(np.corrcoef(noise) - np.eye(5)).max() < 0.08


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_not_sent(value):
    state = RECEIVED.copy()
    state[3] = value
    with pytest.raises(ValueError, match="the update is not finite"):
        encoded(state)


@pytest.mark.parametrize(("clip", "received"), [(5e-324, 1.0), (1.0, np.nan), (1.0, np.inf)])
def test_a_server_cannot_undo_the_clip_by_what_it_sends(clip, received):
    made = NoisyCodec(SIZE, clip, 1.0)
    start = Start(np.full(SIZE, received, np.float32), CLIENTS)
    with pytest.raises(ValueError, match="that its clip does not bound"):
        made.encode(moved(3.0), start, NUMBERS, ClientSeed(0, 1, "0"))
