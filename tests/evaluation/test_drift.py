import itertools
import math

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from orchestra_flwr.evaluation.drift import StreamingDrift

LAYERS = [slice(0, 6), slice(6, 8)]


def distance(one, other):
    """d_w of two flat models: the sum over layers of the L2 norm of their difference."""
    return sum(np.linalg.norm(one[layer].astype(np.float64) - other[layer]) for layer in LAYERS)


def models(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)


def streamed(states, weights=None, before=None):
    drift = StreamingDrift(np.zeros(8, np.float32) if before is None else before, LAYERS)
    for state, weight in zip(states, weights or [1.0] * len(states), strict=True):
        drift.add(state, weight)
    return drift.result()


def test_equal_models_are_not_apart():
    (one,) = models(1)
    assert distance(one, one) == 0
    assert streamed([one, one, one], before=one) == streamed([one, one, one], [1, 2, 3], before=one)
    drift = streamed([one, one, one])
    assert (drift.mean, drift.pairs) == pytest.approx((0, 0), abs=1e-6) and drift.clients == 3


def test_of_two_clients_the_published_distances():
    """Both are as far from their mean, and there is one pair: nothing has to be averaged."""
    a, b = models(2)
    drift = streamed([a, b])
    assert drift.pairs == pytest.approx(distance(a, b), rel=1e-6)
    mean = (a.astype(np.float64) + b) / 2
    assert drift.mean == pytest.approx(distance(a, mean), rel=1e-6)


@pytest.mark.parametrize("weights", [None, [1.0, 5.0, 2.0, 0.5]])
def test_of_many_the_root_mean_square_in_each_layer(weights):
    """Against a slow version that holds all models; any state to begin from."""
    states = models(4)
    shares = np.array(weights or [1.0] * 4) / sum(weights or [1.0] * 4)
    mean = shares @ states.astype(np.float64)
    from_mean = pairs = 0.0
    for layer in LAYERS:
        from_mean += math.sqrt(sum(
            p * np.sum((state[layer] - mean[layer]) ** 2)
            for p, state in zip(shares, states, strict=True)
        ))  # fmt: skip
        total = weight = 0.0
        for (p, a), (q, b) in itertools.combinations(zip(shares, states, strict=True), 2):
            total += p * q * np.sum((a[layer].astype(np.float64) - b[layer]) ** 2)
            weight += p * q
        pairs += math.sqrt(total / weight)
    for before in (None, states[2], models(1, seed=1)[0]):
        drift = streamed(states, weights, before)
        assert (drift.mean, drift.pairs) == pytest.approx((from_mean, pairs), rel=1e-5)


def test_any_number_of_threads_gives_the_same_bits():
    states = np.random.default_rng(0).normal(size=(3, 2_000_000)).astype(np.float32)
    results = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            drift = StreamingDrift(states[0], [slice(0, 1_500_000), slice(1_500_000, 2_000_000)])
            for state in states:
                drift.add(state, 1.0)
            results.append(drift.result())
    assert results[0] == results[1]


def test_one_client_alone_has_no_drift():
    assert streamed(models(1)) is None
