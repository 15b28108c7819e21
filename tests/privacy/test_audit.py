"""Membership audits: what an adversary's guesses prove about epsilon, whatever the accountant says.

Guessing right with probability p where wrong alarms have probability q shows that epsilon is at
least log((p - delta) / q), for both by their Clopper-Pearson bounds (Jagielski et al., "Auditing
Differentially Private Machine Learning", NeurIPS 2020).
"""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from orchestra_flwr.clustering.noise import NoiseStream
from orchestra_flwr.clustering.private_kmeans import (
    Leaves,
    noisy_counts,
    noisy_sums,
    private_clustering,
)
from orchestra_flwr.privacy.accounting import ClusteringMechanism, calibrate, spent
from orchestra_flwr.privacy.discrete_gaussian import discrete_gaussian
from orchestra_flwr.privacy.noisy_sums import NoisySum, sums_epsilon

DELTA = 1e-3
DOUBT = 0.005  # each of the two probabilities may lie beyond its bound so often
TRIALS = 200_000


def proven_epsilon(hits: int, alarms: int, trials: int) -> float:
    """The epsilon that so many right and wrong alarms in as many trials each prove."""
    least = stats.beta.ppf(DOUBT, hits, trials - hits + 1) if hits else 0.0
    most = stats.beta.ppf(1 - DOUBT, alarms + 1, trials - alarms) if alarms < trials else 1.0
    return math.log(max(least - DELTA, 1e-12) / most)


# The worst pair of neighbours: no row, and one row of norm 1. The adversary is given more than a
# client sends, all noisy counts and the noisy sum of the row's own leaf, and takes the most
# powerful test, by the likelihood ratio (Neyman and Pearson).


def scores(mechanism: ClusteringMechanism, present: bool, seed: int) -> torch.Tensor:
    """The likelihood ratio's logarithm in TRIALS independent runs: trials are leaves here."""
    noise = NoiseStream(seed.to_bytes(32))
    leaf = torch.arange(TRIALS if present else 0)
    ratio = torch.zeros(TRIALS, dtype=torch.float64)
    for _ in range(mechanism.depth + 1):
        count = noisy_counts(leaf, TRIALS, mechanism.count_noise, noise)
        ratio += mechanism.count_noise * (count.abs() - (count - 1).abs())
    rows = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(len(leaf), 2)
    every = Leaves(leaf, torch.ones(TRIALS))
    sums = noisy_sums(rows, every, mechanism.sum_noise, noise)[:, 0]
    return ratio + (sums - 0.5) / mechanism.sum_noise**2


def audited_noise(mechanism: ClusteringMechanism) -> float:
    return best_threshold(scores(mechanism, True, 1), scores(mechanism, False, 2))


def best_threshold(of_one: torch.Tensor, of_other: torch.Tensor) -> float:
    """What the best threshold of one half of the trials proves, judged by the other half."""
    (present, fresh), (absent, unseen) = of_one.view(2, -1), of_other.view(2, -1)
    half = TRIALS // 2

    def proven(threshold: float, one: torch.Tensor, other: torch.Tensor) -> float:
        return proven_epsilon(int((one > threshold).sum()), int((other > threshold).sum()), half)

    levels = torch.quantile(present, torch.linspace(0.5, 0.999, 60, dtype=torch.float64)).tolist()
    best = max(levels, key=lambda level: proven(level, present, absent))
    return proven(best, fresh, unseen)


@pytest.mark.parametrize("epsilon", [0.8, 4.0])
def test_noise_keeps_its_promise_and_hardly_more(epsilon):
    promised = calibrate(epsilon, DELTA)
    assert 0.75 * epsilon < audited_noise(promised) < epsilon


@pytest.mark.parametrize("epsilon", [0.8, 4.0])
def test_half_the_noise_is_noticed(epsilon):
    promised = calibrate(epsilon, DELTA)
    halved = replace(promised, sum_noise=promised.sum_noise / 2)
    proven = audited_noise(halved)
    assert 1.3 * epsilon < proven < spent({halved: 1}, DELTA)


def test_counts_with_too_little_noise_are_noticed():
    promised = calibrate(0.8, DELTA)
    assert audited_noise(replace(promised, count_noise=8 * promised.count_noise)) > 1.3 * 0.8


# Sums of clients' noisy updates. The worst pair of neighbours: a client whose update has the
# largest norm, all in one value, one way or the other. Values are trials here. Only those clients
# add noise that the account relies on; the larger a sum is, the likelier it is of the first.


def audited_sum(noise_multiplier: float, rounds: int = 1, missing: int = 0) -> float:
    """What sums of rounds with ten clients prove, `missing` of the noises left out."""
    plan = NoisySum(noise_multiplier, 10, 1)

    def sums(sign: int, seed: int) -> torch.Tensor:
        noises = range(rounds * (plan.noises - missing))
        keys = ((1000 * seed + noise).to_bytes(32) for noise in noises)
        total = sum(discrete_gaussian(key, plan.bits, TRIALS) for key in keys)
        return torch.from_numpy(total).double() + sign * rounds * math.isqrt(plan.bound)

    return best_threshold(sums(1, 1), sums(-1, 2))


@pytest.mark.parametrize(("noise_multiplier", "rounds"), [(2.0, 1), (6.0, 5)])
def test_a_noisy_sum_keeps_its_promise_and_hardly_more(noise_multiplier, rounds):
    promised = sums_epsilon([noise_multiplier] * rounds, DELTA)
    assert 0.6 * promised < audited_sum(noise_multiplier, rounds) < promised


def test_a_sum_with_one_noise_of_four_is_noticed():
    assert audited_sum(2.0, missing=3) > 1.1 * sums_epsilon([2.0], DELTA)


# The whole of private_clustering, as a client calls it: what is sent gives far less away.


def audited_centroids(mechanism: ClusteringMechanism, trials: int = 500) -> float:
    """Guesses whether the last row was there by a centroid that points to it."""
    without = torch.tensor([[1.0, 0.0]])
    rows = torch.cat([without, torch.tensor([[0.0, 1.0]])])

    def guesses(points: torch.Tensor, seed: int) -> int:
        keys = ((seed + trial).to_bytes(32) for trial in range(trials))
        return sum(
            bool((private_clustering(points, 2, mechanism, key) @ rows[1] > 0.5).any())
            for key in keys
        )

    return proven_epsilon(guesses(rows, 0), guesses(without, 10**6), trials)


@pytest.mark.parametrize(("epsilon", "alpha"), [(0.8, 3.13), (4, 0.85)])
@pytest.mark.slow
def test_centroids_give_away_less_than_epsilon(epsilon, alpha):
    promised = ClusteringMechanism(epsilon, DELTA, 3, alpha, 1 / (20 * alpha))
    assert spent({promised: 1}, DELTA) <= epsilon
    proven = audited_centroids(promised)
    assert proven < epsilon
    assert proven > 0 or epsilon < 1  # so few guesses tell nothing about strong noise


def test_centroids_almost_without_noise_are_noticed():
    assert audited_centroids(ClusteringMechanism(0.8, DELTA, 3, 0.1, 2.0)) > 2 * 0.8
