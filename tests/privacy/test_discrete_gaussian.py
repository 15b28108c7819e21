"""The discrete Gaussian: its probabilities, and that float64 decides none of them wrongly."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from orchestra_flwr.privacy import discrete_gaussian as sampler
from orchestra_flwr.privacy.discrete_gaussian import FARTHEST, MAX_BITS, discrete_gaussian

KEY = bytes(range(32))


def probabilities(bits, farthest=8):
    """Integers within so many deviations, and how likely each is."""
    values = np.arange(-farthest * 2**bits, farthest * 2**bits + 1)
    weights = np.exp(-(values.astype(float) ** 2) / (2 * 4.0**bits))
    return values, weights / weights.sum()


@pytest.mark.parametrize("bits", [0, 1, 4])
def test_every_integer_is_as_likely_as_it_should_be(bits):
    values, chances = probabilities(bits)
    drawn = discrete_gaussian(KEY, bits, 10**6)
    counts = np.array([(drawn == value).sum() for value in values])
    often = chances * len(drawn) > 20
    seen = [*counts[often], len(drawn) - counts[often].sum()]
    expected = [*chances[often], 1 - chances[often].sum()]
    assert stats.chisquare(seen, len(drawn) * np.array(expected)).pvalue > 1e-3
    assert counts[~often].sum() > 0  # the tails as well


def test_the_largest_deviation_is_a_gaussian_to_the_eye():
    drawn = discrete_gaussian(KEY, MAX_BITS, 10**5) / 2**MAX_BITS
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    low = discrete_gaussian(KEY, MAX_BITS, 10**5) % 256  # and no bit of it is a constant
    assert stats.chisquare(np.bincount(low, minlength=256)).pvalue > 1e-3


def test_neighbours_know_nothing_of_each_other():
    drawn = discrete_gaussian(KEY, 6, 10**6).astype(float)
    for lag in (1, 2, sampler.CHUNK // 2):
        assert abs(np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]) < 5e-3
    other = discrete_gaussian(KEY[::-1], 6, 10**6)
    assert abs(np.corrcoef(drawn, other)[0, 1]) < 5e-3


def test_more_digits_decide_as_float64_does_where_it_may(monkeypatch):
    """Where it is unsure in a quarter of all cases: the same values, by other means."""
    usual = discrete_gaussian(KEY, 5, 300)
    monkeypatch.setattr(sampler, "UNSURE", 0.1)
    asked = []
    exact = sampler._chance
    monkeypatch.setattr(sampler, "_chance", lambda *about: asked.append(about) or exact(*about))
    np.testing.assert_array_equal(usual, discrete_gaussian(KEY, 5, 300))
    assert len(asked) > 1000
    for size, multiple, bits in asked[:200]:
        chance = sampler.LEVEL * 2.0**multiple * np.exp(-0.5 * (size / 2**bits) ** 2)
        assert float(exact(size, multiple, bits)) / 2**128 == pytest.approx(chance, rel=1e-12)


def test_where_float64_cannot_decide_the_next_digits_do(monkeypatch):
    """A proposal whose random number has the first 64 binary digits of its chance."""

    class Words:
        def __init__(self, *answers):
            self.answers = list(answers)

        def words(self, count):
            return self.answers.pop(0)

    monkeypatch.setattr(sampler, "CHUNK", 1)
    # Deviation 1 has no bits of an offset: bit 0 is the sign, then v zeros and a one. v = 1 is 1.
    chance = sampler._chance(1, 1, 0)
    first, rest = divmod(int(chance), 2**64)
    words = [np.array([0b100], np.uint64), np.array([first], np.uint64)]
    for digits, taken in ((rest - 1, [1]), (rest + 1, [])):
        accepted = sampler._accepted(Words(*words), Words(np.array([digits], np.uint64)), 0)
        assert accepted.tolist() == taken


@settings(max_examples=20, deadline=None)
@given(bits=st.integers(0, MAX_BITS), count=st.integers(0, 3000), key=st.binary())
def test_fewer_are_the_first_of_more_and_none_is_too_far(bits, count, key):
    key = hashlib.sha256(key).digest()
    drawn = discrete_gaussian(key, bits, 3000)
    np.testing.assert_array_equal(drawn[:count], discrete_gaussian(key, bits, count))
    assert np.abs(drawn).max() < FARTHEST * 2**bits


@pytest.mark.parametrize("bits", [-1, MAX_BITS + 1])
def test_another_deviation_is_refused(bits):
    with pytest.raises(ValueError, match=r"it must be from 2\^0 to 2\^24"):
        discrete_gaussian(KEY, bits, 1)
