"""Sums with each client's share of noise: the bound, the room, and the account against numbers."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra_flwr.privacy.discrete_gaussian import FARTHEST, discrete_gaussian
from orchestra_flwr.privacy.noisy_sums import MIN_BITS, NoisySum, sums_epsilon
from orchestra_flwr.privacy.secure_sums.cohort import colluding, quorum
from orchestra_flwr.privacy.updates import composed_epsilon
from tests.privacy.test_discrete_gaussian import probabilities

plans = {
    "noise": st.floats(1e-3, 100),
    "clients": st.integers(3, 1000),
    "size": st.integers(1, 3000),
}


@settings(max_examples=60, deadline=None)
@given(**plans, seed=st.integers(0, 99), flat=st.booleans())
def test_integers_are_within_the_bound_whatever_is_rounded(noise, clients, size, seed, flat):
    """Also halves, which rounding moves farthest."""
    plan = NoisySum(noise, clients, size)
    rng = np.random.default_rng(seed)
    vector = np.ones(size) if flat else rng.normal(size=size)
    vector *= plan.scale(0.5) * 0.5 / np.linalg.norm(vector)
    if flat:
        vector = np.floor(vector) + 0.5 * (np.floor(vector) + 0.5 <= vector)
    integers = plan.rounded(vector, rng)
    assert int(np.square(integers, dtype=np.int64).sum()) <= plan.bound
    assert np.abs(integers - vector).max() < 1


@settings(max_examples=100, deadline=None)
@given(noise=st.floats(1e-6, 1e5), clients=st.integers(3, 1000), size=st.integers(1, 10**8))
def test_noise_suffices_and_no_sum_overflows_or_it_is_refused(noise, clients, size):
    try:
        plan = NoisySum(noise, clients, size)
    except ValueError as error:
        assert str(error).startswith(f"privacy.noise_multiplier={noise:g}: updates of {size}")
        assert not 1e-2 <= noise <= 10 or size > 10**6
        return
    assert plan.noises == quorum(clients) - colluding(clients) > 0
    assert plan.noises * 4.0**plan.bits >= noise**2 * plan.bound * (1 - 1e-12)
    assert clients * (math.sqrt(plan.bound) + FARTHEST * 2**plan.bits) < 2**31
    assert plan.bits >= MIN_BITS
    assert 0.98 < plan.scale(2.0) * 2 / math.sqrt(plan.bound) < 1  # little is given to rounding


@pytest.mark.parametrize("noise", [0.0, 1e-300, 1e300, math.inf, math.nan])
def test_what_is_no_noise_is_refused_in_the_same_line(noise):
    with pytest.raises(ValueError, match="privacy.noise_multiplier=.*, take a value nearer to 1"):
        NoisySum(noise, 5, 100)


def test_a_rounding_that_exceeds_the_bound_is_made_again():
    plan = NoisySum(1.0, 3, 4)
    tries = []

    class Upwards:
        def random(self, count):
            tries.append(count)
            return np.full(count, 1 - 2.0**-20 if len(tries) < 3 else 0.0)

    vector = np.floor(math.sqrt(plan.bound) / 2) + np.full(4, 0.5)
    assert np.sum(np.floor(vector) ** 2) <= plan.bound < np.sum(np.ceil(vector) ** 2)
    np.testing.assert_array_equal(plan.rounded(vector, Upwards()), np.floor(vector))
    assert len(tries) == 3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 2.0**32, 2.0**31])
def test_no_number_slips_through_the_bound(value):
    """Squares of 2^32 wrap around to 0 in 64 bits; a hostile server chooses clip and model."""
    vector = np.zeros(100_000)
    vector[70_000:70_004] = value
    with pytest.raises(ValueError, match="that its clip does not bound"):
        NoisySum(1.0, 3, 100_000).rounded(vector, np.random.default_rng(0))


def test_rounding_has_no_bias():
    plan = NoisySum(1.0, 10, 200_000)
    vector = np.full(200_000, 0.3)
    assert abs(plan.rounded(vector, np.random.default_rng(0)).mean() - 0.3) < 5e-3


@pytest.mark.parametrize(("noise", "clients", "rounds", "delta"), [
    (1.0, 3, 4, 1e-3), (4.0, 4, 1, 1e-5), (8.0, 9, 4, 1e-3),
])  # fmt: skip
def test_the_account_is_no_less_than_the_true_distribution_costs(noise, clients, rounds, delta):
    """The noises that are relied on, convolved, shifted by an exchange; and it is no idle claim."""
    plan = NoisySum(noise, clients, 1)
    _, one = probabilities(plan.bits, farthest=10)
    total = one
    for _ in range(plan.noises - 1):
        total = np.convolve(total, one)
    assert np.sum(total * (np.arange(len(total)) - len(total) // 2) ** 2.0) == pytest.approx(
        plan.noises * 4.0**plan.bits, rel=1e-6
    )
    shift = 2 * math.isqrt(plan.bound)
    lower = np.log(np.maximum(np.concatenate([total, np.zeros(shift)]), 1e-300))
    upper = np.log(np.maximum(np.concatenate([np.zeros(shift), total]), 1e-300))
    losses = pld.from_two_probability_mass_functions(
        dict(enumerate(lower)), dict(enumerate(upper)), value_discretization_interval=1e-2
    )
    true = losses.self_compose(rounds).get_epsilon_for_delta(delta)
    claimed = sums_epsilon([noise] * rounds, delta)
    assert 0.7 * claimed < true < claimed


def test_a_sum_of_discrete_gaussians_is_as_good_as_one():
    """Proposition 14 of Kairouz et al.: its correction, whose logarithm is taken."""
    deviation, clients = 2.0**MIN_BITS, 1000
    largest = -2 * (math.pi * deviation) ** 2 / 2  # the first of the sum, and the largest
    correction = math.log10(10 * clients) + largest / math.log(10)
    assert correction < -1090


@pytest.mark.parametrize("gone", [0, 3])
def test_the_noise_in_a_sum_is_at_least_what_is_accounted(gone):
    """Of ten clients as many drop out as may, and as many of the others add none as may."""
    plan, size = NoisySum(2.0, 10, 1), 100_000
    added = quorum(10) - colluding(10) if gone else 10
    total = sum(discrete_gaussian(bytes([i]) * 32, plan.bits, size) for i in range(added))
    relied = 2.0 * math.sqrt(plan.bound)
    assert total.std() / relied == pytest.approx(math.sqrt(added / plan.noises), rel=0.02)
    assert added >= plan.noises


def test_sums_add_up():
    assert sums_epsilon([], 1e-3) == 0
    for none in (0.0, 1e-200, 1e-160):
        assert sums_epsilon([1.0, none], 1e-3) == math.inf
    assert sums_epsilon([4.0] * 10, 1e-3) == pytest.approx(
        composed_epsilon(4.0, [(20, 20, 10)], 1e-3)
    )
    assert sums_epsilon([4.0], 1e-3) < sums_epsilon([4.0, 9.0], 1e-3) < sums_epsilon([4, 4], 1e-3)
