import math
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.stats import kstest, norm
from threadpoolctl import threadpool_limits

from orchestra_flwr.privacy.updates import (
    CHUNK,
    MIN_NOISE,
    add_noisy_round,
    clipped_state,
    clipped_update,
    composed_epsilon,
    standard_normals,
)

KEY = bytes(range(32))


def update_epsilon(noise_multiplier, clients, cohort, rounds, delta):
    """Of a run whose population does not change."""
    return composed_epsilon(noise_multiplier, [(clients, cohort, rounds)], delta)


def states(size=1000, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    before = rng.normal(size=size).astype(np.float32)
    return before, before + (scale * rng.normal(size=size)).astype(np.float32)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6, 1e30])
@pytest.mark.parametrize("clip", [1e-2, 1.0, 50.0])
def test_an_update_is_scaled_to_the_clip_and_keeps_its_direction(scale, clip):
    before, after = states(scale=scale)
    whole = after.astype(np.float64) - before
    update = clipped_update(before, after, clip)
    length = np.linalg.norm(whole)
    assert np.linalg.norm(update) <= min(clip, length) * (1 + 1e-12)
    np.testing.assert_allclose(update, whole * min(1, clip / length), rtol=1e-12)


def test_a_client_sends_a_state_within_the_clip():
    before, after = states()
    sent = clipped_state(before, after, 0.5)
    assert sent.dtype == np.float32
    # Of states near 1 float32 keeps differences to 1e-7 each.
    np.testing.assert_allclose(sent - before, clipped_update(before, after, 0.5), atol=2e-7)
    assert np.linalg.norm(sent - before) == pytest.approx(0.5, rel=1e-4)


def test_a_small_update_is_sent_as_it_is():
    before, after = states(scale=1e-3)
    np.testing.assert_array_equal(clipped_state(before, after, 1.0), after)
    np.testing.assert_array_equal(clipped_update(before, after, 1.0), after - before.astype(float))


@pytest.mark.parametrize("excess", [1e-6, 0.1, 0.5, 0.99, 1, 3])
def test_an_update_that_exceeds_the_clip_by_little_is_clipped_too(excess):
    """Whatever the factor, the client sends and the server takes the clip, not a bit more."""
    received, trained = states()
    clip = np.linalg.norm(trained - received.astype(np.float64)) / (1 + excess)
    assert np.linalg.norm(clipped_update(received, trained, clip)) == pytest.approx(clip, rel=1e-12)
    sent = clipped_state(received, trained, clip).astype(np.float64)
    assert np.linalg.norm(sent - received) == pytest.approx(clip, rel=2e-7)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_squares_that_float32_cannot_hold_are_clipped(scale):
    received = np.zeros(1000, np.float32)
    trained = (scale * states()[1]).astype(np.float32)
    clip = np.linalg.norm(trained.astype(np.float64)) / 3
    sent = clipped_state(received, trained, clip).astype(np.float64)
    assert np.linalg.norm(sent) == pytest.approx(clip, rel=1e-6)


def test_an_update_of_exactly_the_clip_is_sent_as_it_is():
    received, trained = np.zeros(2, np.float32), np.array([3, 4], np.float32)
    assert clipped_state(received, trained, 5.0) is trained
    np.testing.assert_array_equal(clipped_update(received, trained, 5.0), trained)


def test_a_million_values_are_clipped_to_float64s_norm():
    """A norm in float32 would let through some 1e-5 more; only the result's rounding may."""
    before, after = states(size=2**20, scale=0.01)
    sent = clipped_state(before, after, 1.0)
    assert abs(np.linalg.norm(sent.astype(np.float64) - before) - 1) < 1e-7


def test_any_number_of_threads_gives_the_same_bits():
    """Many differences: threads change the last bit of only some norms."""
    several = [states(size=300_000, scale=0.01, seed=seed) for seed in range(8)]
    updates = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            updates.append([clipped_update(*pair, 1.0).tobytes() for pair in several])
    assert all(one == two for one, two in zip(*updates, strict=True))


def test_noise_is_standard_normal():
    """A million draws: mean within 5 deviations of 0, variance of 1, and Kolmogorov-Smirnov."""
    normals = standard_normals(KEY, 3, 10**6)
    assert abs(normals.mean()) < 5e-3
    assert abs(normals.var() - 1) < 5 * math.sqrt(2e-6)
    assert kstest(normals, "norm").pvalue > 1e-3
    assert 4.3 < abs(normals).max() < 7
    for lag in (1, 2, 3, 2 * CHUNK):  # neither pairs nor chunks are correlated
        assert abs(np.corrcoef(normals[:-lag], normals[lag:])[0, 1]) < 5e-3


def test_noise_follows_from_key_and_round_alone():
    count = 4 * CHUNK + 7
    first = standard_normals(KEY, 1, count)
    for fewer in (11, 2 * CHUNK + 1, count):
        np.testing.assert_array_equal(first[:fewer], standard_normals(KEY, 1, fewer))
    others = (standard_normals(KEY, 2, count), standard_normals(KEY[::-1], 1, count))
    assert all(abs(np.corrcoef(first, other)[0, 1]) < 0.02 for other in others)
    assert standard_normals(KEY, 1, 0).shape == (0,)


def gaussian_epsilon(deviation, delta):
    """Exact, for sensitivity 1 (Balle and Wang, "Improving the Gaussian Mechanism", 2018)."""

    def excess(epsilon):
        half, shift = 1 / (2 * deviation), epsilon * deviation
        return norm.cdf(half - shift) - math.exp(epsilon + norm.logcdf(-half - shift)) - delta

    return brentq(excess, 0, 1e4) if excess(0) > 0 else 0.0


@pytest.mark.parametrize("noise", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("rounds", [1, 10, 100])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_everybody_in_every_round_is_the_gaussian_mechanism(noise, rounds, delta):
    """Between the exact value and zCDP's formula; the sensitivity of an exchange is 2 clips."""
    epsilon = update_epsilon(noise, 10, 10, rounds, delta)
    exact = gaussian_epsilon(noise / (2 * math.sqrt(rounds)), delta)
    rho = rounds * 2**2 / (2 * noise**2)
    assert exact <= epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert epsilon <= 1.25 * exact + 0.05


@pytest.mark.parametrize(("noise", "cohort"), [(1.0, 1), (2.0, 5), (4.0, 20), (4.0, 60)])
def test_no_less_than_the_worst_pair_of_clients_shows(noise, cohort):
    """One round of a cohort from 100, all others sending nothing: +C exchanged for -C.

    The sum is a mixture, q N(+1, z) + (1 - q) N(0, z) against q N(-1, z) + (1 - q) N(0, z), whose
    exact delta at the epsilon that we claim must not exceed the delta that we claim.
    """
    delta, q = 1e-3, cohort / 100
    epsilon = update_epsilon(noise, 100, cohort, 1, delta)
    x = np.linspace(-12 * noise, 12 * noise, 400_001)
    nothing = (1 - q) * norm.pdf(x, 0, noise)
    one, other = (nothing + q * norm.pdf(x, mean, noise) for mean in (1, -1))
    spent = np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0), x)
    assert spent <= delta
    # ... and it is no idle claim: a small cohort is protected by being secret.
    if cohort <= 5:
        assert epsilon < 0.5 * update_epsilon(noise, 100, 100, 1, delta)


def test_more_rounds_and_larger_cohorts_cost_more_and_noise_less():
    def rising(values):
        return all(a <= b for a, b in pairwise(values))

    assert rising([update_epsilon(2, 100, 10, rounds, 1e-3) for rounds in (1, 10, 100)])
    assert rising([update_epsilon(2, 100, m, 10, 1e-3) for m in (1, 10, 50, 100)])
    assert rising([update_epsilon(noise, 100, 10, 10, 1e-3) for noise in (4, 2, 0.5)])
    assert rising([update_epsilon(2, 100, 10, 10, delta) for delta in (1e-2, 1e-3, 1e-6)])


def test_drawing_a_cohort_never_costs_privacy():
    everybody = update_epsilon(5, 100, 100, 100, 1e-3)
    assert all(update_epsilon(5, 100, m, 100, 1e-3) <= everybody for m in (10, 50, 90, 99))


def test_without_rounds_epsilon_is_0_and_without_noise_infinite():
    assert composed_epsilon(1, [], 1e-3) == 0
    for none in (0, 5e-324, 1e-200, 1e-160, 1e-7):
        assert update_epsilon(none, 10, 5, 1, 1e-3) == math.inf
    assert update_epsilon(MIN_NOISE, 10, 5, 1, 1e-3) > 1e10


def test_rounds_of_a_changing_population_add_up():
    drawn = []
    for clients, cohort in ((10, 5), (12, 6), (10, 5), (12, 12)):
        drawn = add_noisy_round(drawn, clients, cohort)
    assert drawn == [[10, 5, 2], [12, 6, 1], [12, 12, 1]]
    whole = composed_epsilon(4, drawn, 1e-3)
    assert composed_epsilon(4, drawn[:2], 1e-3) < whole <= update_epsilon(4, 12, 12, 4, 1e-3)


def test_the_account_of_a_round_takes_no_longer_the_more_kinds_of_rounds_there_were(monkeypatch):
    """On a real server clients come and go, and each number of them is another kind of round."""
    composed, compose = [], RdpAccountant.compose

    def counted(self, event, count=1):
        composed.append(event)
        return compose(self, event, count)

    monkeypatch.setattr(RdpAccountant, "compose", counted)
    drawn, counts = [], []
    for clients in range(40, 44):
        drawn, before = add_noisy_round(drawn, clients, 4), len(composed)
        composed_epsilon(3.7, drawn, 1e-3)
        counts.append(len(composed) - before)
    assert len(set(counts)) == 1
