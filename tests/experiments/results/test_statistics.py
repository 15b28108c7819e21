import numpy as np
import pytest

from orchestra_flwr.experiments.results.statistics import Sample, correlation


def test_mean_and_deviation_by_hand():
    """60, 62, 67: mean 63, squares 9 + 1 + 16 = 26, over n - 1 = 2: 13."""
    sample = Sample.of([60.0, 62.0, 67.0])
    assert (sample.mean, sample.count) == (63, 3)
    assert sample.deviation == pytest.approx(13**0.5)
    assert str(sample) == "63.00 ± 3.61"


def test_one_value_has_no_deviation_and_none_is_no_sample():
    assert Sample.of([1.5]) == Sample(1.5, None, 1)
    assert str(Sample.of([1.5])) == "1.50"
    assert Sample.of([]) is None


def test_correlation():
    x, y = [1.0, 2.0, 3.0, 5.0], [2.0, 1.0, 4.0, 6.0]
    pairs = list(zip(x, y, strict=True))
    assert correlation(pairs) == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert correlation([(1, 2), (2, 4), (3, 6)]) == pytest.approx(1)
    assert correlation(pairs[:2]) is None
    assert correlation([(1, 2), (1, 3), (1, 4)]) is None
