import dataclasses
import subprocess
import sys
import tracemalloc

import pytest

from orchestra_flwr.privacy.accounting import ClusteringMechanism, calibrate, spent

DELTA = 1e-3


def library_epsilon(mechanism: ClusteringMechanism, rounds: int, grid: float) -> float:
    """What dp-accounting's own accountant says, at the delta of one round."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    sums = dp_event.GaussianDpEvent(mechanism.sum_noise)
    count = dp_event.DiscreteLaplaceDpEvent(mechanism.count_noise, 1)
    counts = dp_event.SelfComposedDpEvent(count, mechanism.depth + 1)
    accountant = PLDAccountant(value_discretization_interval=grid)
    accountant.compose(dp_event.ComposedDpEvent([sums, counts]), rounds)
    return accountant.get_epsilon(mechanism.delta)


@pytest.mark.parametrize(
    ("epsilon", "sum_noise", "count_noise"),
    [
        pytest.param(0.8, 3.19, 0.0157, marks=pytest.mark.slow),
        (1, 2.64, 0.0189),
        pytest.param(10, 0.417, 0.120, marks=pytest.mark.slow),
    ],
)
def test_published_noise(epsilon, sum_noise, count_noise):
    mechanism = calibrate(epsilon, DELTA, 20)
    assert mechanism.sum_noise == pytest.approx(
        sum_noise, abs=0.5 * 10 ** -(2 if epsilon < 10 else 3)
    )
    assert mechanism.count_noise == pytest.approx(count_noise, rel=5e-3)
    assert calibrate(epsilon, DELTA) is mechanism


@pytest.mark.parametrize(
    ("epsilon", "grid"), [(0.8, 1e-4), (0.05, 5e-5), (10, 1e-3)], ids=["usual", "tiny", "huge"]
)
def test_the_library_agrees_and_no_noise_is_wasted(epsilon, grid):
    mechanism = calibrate(epsilon, DELTA)
    assert 0.99 * epsilon < library_epsilon(mechanism, 1, grid) <= epsilon
    assert 0.95 * epsilon < spent({mechanism: 1}, DELTA) <= epsilon


def test_less_noise_would_break_the_promise():
    mechanism = calibrate(0.8, DELTA)
    weaker = dataclasses.replace(mechanism, sum_noise=0.98 * mechanism.sum_noise)
    assert spent({weaker: 1}, DELTA) > 0.8


def test_depth_barely_matters():
    shallow, deep = calibrate(0.8, DELTA, 3), calibrate(0.8, DELTA, 20)
    assert 1 < deep.sum_noise / shallow.sum_noise < 1.025


def test_published_composition_is_the_librarys_upper_bound_of_ours():
    """9.04: every one of the 50 x 21 counts rounded up to the library's usual grid."""
    mechanism = calibrate(0.8, DELTA)
    assert library_epsilon(mechanism, 50, 1e-4) == pytest.approx(9.04, abs=0.005)
    assert spent({mechanism: 50}, DELTA) == pytest.approx(8.99, abs=0.01)


def test_published_composition_of_the_weak_mechanism():
    """204.58 by the library's grid of 1e-4 for calibration and sum, which is too slow for us."""
    assert spent({calibrate(10, DELTA): 50}, DELTA) == pytest.approx(204.6, rel=2e-3)


def test_many_releases_cost_less_than_their_sum_only_where_noise_is_strong():
    strong = calibrate(0.8, DELTA)
    assert spent({strong: 50}, DELTA) < 50 * 0.8 / 4
    # (epsilon, delta) events alone would have no finite sum: 50 deltas exceed the one allowed.
    assert spent({strong: 2}, DELTA) > spent({strong: 1}, DELTA)
    assert spent({strong: 1}, 1e-5) > spent({strong: 1}, DELTA)
    assert spent({strong: 0}, DELTA) == 0


def test_releases_of_different_noise_add_up_as_the_library_says():
    """Three of epsilon .8, five of 4 and one of 10, as a client of several runs would have."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    releases = {calibrate(0.8, DELTA): 3, calibrate(4, DELTA): 5, calibrate(10, DELTA): 1}
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for mechanism, times in releases.items():
        count = dp_event.DiscreteLaplaceDpEvent(mechanism.count_noise, 1)
        accountant.compose(dp_event.GaussianDpEvent(mechanism.sum_noise), times)
        accountant.compose(count, times * (mechanism.depth + 1))
    ours, theirs = spent(releases, DELTA), accountant.get_epsilon(DELTA)
    assert 0.97 * theirs < ours <= theirs
    assert spent(dict(reversed(releases.items())), DELTA) == ours
    assert ours < sum(spent({noise: times}, DELTA) for noise, times in releases.items())


@pytest.mark.slow
def test_noise_a_thousand_times_stronger_costs_almost_nothing_beside():
    """Its grid would be too fine to go through; the coarser one rounds up, a little."""
    weak, strong = calibrate(10, DELTA), calibrate(0.01, DELTA)
    alone, together = spent({weak: 20}, DELTA), spent({weak: 20, strong: 20}, DELTA)
    assert alone < together < alone + spent({strong: 20}, DELTA) + 0.01 * alone


def test_many_weak_releases_beside_a_strong_one_cost_no_boards_memory():
    """They took half a minute and 1.5 GB, ten times as many more than 6 GB."""
    weak, strong = calibrate(50, DELTA), calibrate(0.1, DELTA)
    alone = spent({weak: 100}, DELTA)
    tracemalloc.start()
    together = spent({weak: 100, strong: 1}, DELTA)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert alone < together < alone + spent({strong: 1}, DELTA) + 0.001 * alone
    assert peak < 100e6


def test_many_releases_with_next_to_no_noise_cost_no_boards_memory():
    """Their losses add up to nearly a normal distribution; 100 took 16 seconds and 1.3 GB."""
    noise, times = ClusteringMechanism(1e5, DELTA, 20, 0.002259, 22.135), 100
    tracemalloc.start()
    cost = spent({noise: times}, DELTA)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    precision = times / noise.sum_noise**2
    mean = precision / 2 + times * (noise.depth + 1) * noise.count_noise
    quantile = mean + 3.09 * precision**0.5  # exceeded with a probability of .001
    assert 0.9999 * quantile < cost < 1.0001 * quantile
    assert peak < 100e6


@pytest.mark.parametrize(
    ("epsilon", "delta", "depth"),
    [
        *[(epsilon, 0.1, 1) for epsilon in (0, -1, float("nan"), float("inf"))],
        *[(1, delta, 1) for delta in (0, 1, float("nan"))],
        (1, 0.1, -1),
    ],
)
def test_refuses_what_is_no_budget(epsilon, delta, depth):
    with pytest.raises(ValueError, match=r"^(epsilon|delta|depth) must .*, not \S+$"):
        calibrate(epsilon, delta, depth)
    with pytest.raises(ValueError, match=r"^(epsilon|delta|depth) must"):
        ClusteringMechanism(epsilon, delta, depth, 1.0, 1.0)


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_what_is_no_noise(noise):
    with pytest.raises(ValueError, match="sum_noise"):
        ClusteringMechanism(1, 0.1, 1, noise, 1.0)
    with pytest.raises(ValueError, match="count_noise"):
        ClusteringMechanism(1, 0.1, 1, 1.0, noise)


def test_refuses_negative_numbers_of_releases():
    with pytest.raises(ValueError, match="releases must be at least 0, not -1"):
        spent({ClusteringMechanism(1, 0.1, 1, 1.0, 1.0): -1}, 0.1)


def test_the_slow_library_waits_until_it_is_needed():
    check = "import sys, orchestra_flwr.privacy; sys.exit('dp_accounting' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
