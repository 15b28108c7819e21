import numpy as np
import pytest

from orchestra_flwr.federation.aggregation import StreamingMean


def mean(pairs):
    total = StreamingMean(len(pairs[0][0]))
    for values, weight in pairs:
        total.add(np.asarray(values, np.float32), weight)
    return total.mean()


def test_worked_by_hand():
    np.testing.assert_array_equal(mean([([1, 2], 1), ([4, 8], 3)]), [13 / 4, 26 / 4])


def test_agrees_with_numpy_in_double_precision():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 1000)).astype(np.float32)
    weights = rng.integers(1, 500, 50)
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


def test_refuses_what_has_no_mean():
    with pytest.raises(ValueError, match="mean of nothing"):
        StreamingMean(2).mean()
    with pytest.raises(ValueError, match="positive"):
        StreamingMean(2).add(np.ones(2, np.float32), 0)
    with pytest.raises(ValueError, match="expected"):
        StreamingMean(2).add(np.ones(3, np.float32), 1)
