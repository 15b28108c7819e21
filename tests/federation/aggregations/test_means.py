import numpy as np
import pytest

from orchestra_flwr.config import Section
from orchestra_flwr.federation.aggregations.mean import Mean
from orchestra_flwr.federation.server.stage_update import ClippedMean
from orchestra_flwr.federation.vector_blocks import BLOCK


def mean(pairs):
    total = Mean(Section(), len(pairs[0][0]))
    for values, weight in pairs:
        total.add(np.asarray(values, np.float32), weight)
    return total.result()


def test_worked_by_hand():
    np.testing.assert_array_equal(mean([([1, 2], 1), ([4, 8], 3)]), [13 / 4, 26 / 4])


@pytest.mark.parametrize("size", [1, 1000, BLOCK, 3 * BLOCK + 7])
def test_agrees_with_numpy_in_double_precision(size):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, size)).astype(np.float32)
    weights = rng.integers(1, 500, 5)
    expected = np.average(values.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_array_equal(
        mean(list(zip(values, weights, strict=True))), expected.astype(np.float32)
    )


def test_order_does_not_matter_beyond_the_last_bit_of_a_double():
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=1000), w) for w in rng.integers(1, 500, 30)]
    np.testing.assert_allclose(mean(pairs), mean(pairs[::-1]), rtol=1e-7)


def test_one_reply_is_its_own_mean():
    values = np.array([1e-30, -3.5, 1e30], np.float32)
    np.testing.assert_array_equal(mean([(values, 7)]), values)


def test_read_only_arrays_are_taken_as_they_are():
    values = np.frombuffer(np.ones(3, np.float32).tobytes(), np.float32)
    assert not values.flags.writeable
    np.testing.assert_array_equal(mean([(values, 2)]), [1, 1, 1])


def clipped(states, previous=(0, 0), clip=1.0, cohort=None, noise=None):
    total = ClippedMean(np.array(previous, np.float32), clip, cohort or len(states), noise)
    for state in states:
        total.add(np.asarray(state, np.float32), 1)
    return total.result()


def test_clipped_updates_by_hand():
    # (3, 4) is clipped to (.6, .8); (0, .5) is not.
    np.testing.assert_allclose(clipped([(3, 4), (0, 0.5)]), [0.3, 0.65], rtol=1e-6)
    np.testing.assert_allclose(clipped([(4, 6), (1, 2.5)], previous=(1, 2)), [1.3, 2.65], rtol=1e-6)


def test_within_the_clip_it_is_the_mean():
    rng = np.random.default_rng(0)
    previous = rng.normal(size=100).astype(np.float32)
    states = [previous + rng.normal(size=100).astype(np.float32) for _ in range(5)]
    np.testing.assert_allclose(
        clipped(states, previous, clip=100), mean([(s, 1) for s in states]), rtol=1e-6, atol=1e-6
    )


def test_who_fails_counts_as_no_change():
    np.testing.assert_allclose(clipped([(0.5, 0)], cohort=4), [0.125, 0])
    np.testing.assert_array_equal(clipped([], cohort=4, previous=(1, 2)), [1, 2])


@pytest.mark.parametrize("rogue", [1e3, 1e30])
def test_nobody_moves_the_mean_by_more_than_a_share_of_the_clip(rogue):
    rng = np.random.default_rng(2)
    honest = [0.1 * rng.normal(size=50) for _ in range(9)]
    without = clipped([*honest, np.zeros(50)], np.zeros(50))
    moved = clipped([*honest, rogue * rng.normal(size=50)], np.zeros(50)) - without
    assert np.linalg.norm(moved) == pytest.approx(1 / 10, rel=1e-5)


def test_noise_goes_into_the_sum():
    noise = lambda: np.array([8.0, -4.0])  # noqa: E731
    np.testing.assert_array_equal(clipped([(1, 0), (0, 0)], cohort=4, noise=noise), [2.25, -1])


def test_the_order_of_clipped_updates_does_not_matter():
    rng = np.random.default_rng(1)
    states = list(rng.normal(size=(30, 1000)))
    np.testing.assert_allclose(
        clipped(states, np.zeros(1000)),
        clipped(states[::-1], np.zeros(1000)),
        rtol=1e-6,
        atol=1e-12,
    )
