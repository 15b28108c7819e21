import math

import pytest
import torch
from scipy import stats

from orchestra_flwr.clustering.noise import NoiseStream

UNLIKELY = 1e-4  # seeds are fixed: a test that passes today passes always


def stream(seed: int = 0) -> NoiseStream:
    return NoiseStream(seed.to_bytes(32))


def chi_square(sample: torch.Tensor, a: float) -> float:
    """p of integers under probabilities proportional to exp(-a |x|), tails as one bin each."""
    reach = max(1, int(3 / a))
    exact = [math.tanh(a / 2) * math.exp(-a * abs(x)) for x in range(-reach, reach + 1)]
    tail = math.exp(-a * (reach + 1)) / (1 + math.exp(-a))
    bins = sample.clamp(-reach - 1, reach + 1) + reach + 1
    expected = torch.tensor([tail, *exact, tail], dtype=torch.float64) * len(sample)
    seen = bins.bincount(minlength=len(expected)).double()
    return stats.chisquare(seen.numpy(), expected.numpy()).pvalue


@pytest.mark.parametrize("a", [0.0157, 0.12, 1.0, 3.0])
def test_discrete_laplace_has_the_exact_probabilities(a):
    sample = stream(1).discrete_laplace(200_000, a)
    assert sample.dtype == torch.int64
    assert chi_square(sample, a) > UNLIKELY
    assert chi_square(sample, 1.05 * a) < UNLIKELY  # the test would see another scale


@pytest.mark.parametrize("a", [0.0157, 0.12])
def test_discrete_laplace_mean_and_variance(a):
    sample = stream(2).discrete_laplace(200_000, a).double()
    variance = 1 / (2 * math.sinh(a / 2) ** 2)
    assert abs(sample.mean()) < 4 * math.sqrt(variance / len(sample))
    assert sample.var() == pytest.approx(variance, rel=0.03)


def test_gaussian():
    sample = stream(3).gaussian(400, 500).flatten().numpy()
    assert stats.kstest(sample, "norm").pvalue > UNLIKELY
    assert stats.kstest(1.04 * sample, "norm").pvalue < UNLIKELY
    assert abs(sample.mean()) < 4 / math.sqrt(sample.size)
    assert sample.var() == pytest.approx(1, abs=0.015)


def test_uniform_is_never_0_or_1():
    sample = stream(4).uniform(100_000)
    assert sample.min() > 0 and sample.max() < 1
    assert stats.kstest(sample.numpy(), "uniform").pvalue > UNLIKELY


def test_same_seed_same_noise_and_no_other():
    once, again, other = (stream(seed).gaussian(64) for seed in (5, 5, 6))
    assert torch.equal(once, again)
    assert not torch.isin(once, other).any()


def test_no_noise_at_all():
    assert stream().gaussian(0, 3).shape == (0, 3)
    assert stream().discrete_laplace(0, 1.0).shape == (0,)
