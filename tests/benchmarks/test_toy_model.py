from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def toy():
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(BENCHMARKS))
        import toy_model

        yield toy_model


@pytest.fixture(scope="module")
def outcome(toy):
    return toy.simulate(toy.Setting(256, 3))


def test_self_supervision_represents_all_axes_as_in_the_reference(outcome):
    """K = 3, d = 256: .995, .984 and .998; leading eigenvalues 7.0, 2.4, 1.1, then .20."""
    assert outcome.ssl_others == pytest.approx(0.995, abs=0.01)
    assert outcome.ssl_own == pytest.approx(0.984, abs=0.01)
    assert outcome.ssl_global == pytest.approx(0.998, abs=0.01)
    assert outcome.eigenvalues[:4] == pytest.approx((7.0, 2.4, 1.1, 0.2), rel=0.04)
    assert len(outcome.eigenvalues) == 2 * 3 + 1


def test_supervision_represents_the_own_axis_as_in_the_reference(outcome):
    """.043, and .85 and .09 of one draw: those differ by .02 from source to source."""
    assert outcome.sl_correlation == pytest.approx(0.043, abs=0.01)
    assert outcome.sl_own == pytest.approx(0.85, abs=0.03)
    assert outcome.sl_others == pytest.approx(0.09, abs=0.03)
    assert outcome.sl_own_correlation == pytest.approx(1.59, abs=0.1)
    for source, row in enumerate(outcome.sl):
        assert row.argmax() == source and np.delete(row, source).max() < 0.2


def test_points_are_those_of_the_definition(toy):
    setting = toy.Setting(1024, 3, frequent=4000, rare=2)
    assert (setting.tau, setting.mu) == (pytest.approx(4), pytest.approx(0.25))
    points, classes = toy.source_points(setting, 1)
    assert points.shape == (2 * 4000 + 2 * 2, 1024)
    assert dict(zip(*np.unique(classes, return_counts=True), strict=True)) == {
        0: 2, 2: 4000, 3: 4000, 4: 2,
    }  # fmt: skip
    first, second = (points[classes == label] for label in (2, 3))
    np.testing.assert_allclose(first.mean(0)[:4], [-2, 1, -2, 0], atol=0.15)
    np.testing.assert_allclose(second.mean(0)[:4], [-2, -1, -2, 0], atol=0.15)
    assert first[:, 5:].std() == pytest.approx(0.25, rel=0.01)
    assert points[classes == 4][:, 2].mean() == pytest.approx(1, abs=0.6)


def test_the_uncentred_block_has_the_leading_eigenvalue_of_k_quarters(toy):
    """The proof takes it for diagonal: then both would be tau^2 / 2."""
    setting = toy.Setting(64, 5, frequent=20_000)
    points, _ = toy.source_points(setting, 0)
    eigenvalues = np.linalg.eigvalsh(toy.second_moments(points))[::-1][:4]
    expected = np.array([5, 1, 1, 1]) * setting.tau**2 / 4 + setting.mu**2
    np.testing.assert_allclose(eigenvalues, expected, rtol=0.03)


def test_the_closed_form_is_where_gradient_descent_ends(toy):
    """By the span of the rows: |X - w^T w|^2 from a random start."""
    setting = toy.Setting(24, 3, frequent=300)
    moments = toy.second_moments(toy.source_points(setting, 0)[0])
    w = np.random.default_rng(0).normal(size=(3, 24)) * 0.1
    for _ in range(20_000):
        w += 0.02 * w @ (moments - w.T @ w)
    rows = toy.ssl_span(moments, 3)
    _, _, descended = np.linalg.svd(w, full_matrices=False)
    np.testing.assert_allclose(descended.T @ descended, rows.T @ rows, atol=1e-6)


def test_representability_by_hand(toy):
    rows = np.array([[3.0, 0, 0, 0], [0, 1, 1, 0], [6, 0, 0, 0]])  # the third adds nothing
    np.testing.assert_allclose(toy.representability(rows, 4), [1, 0.5, 0.5, 0], atol=1e-12)


def test_the_same_seed_has_the_same_points(toy):
    one, other, third = (toy.source_points(toy.Setting(16, 2, seed=s), 0)[0] for s in (1, 1, 2))
    np.testing.assert_array_equal(one, other)
    assert (one != third).any()
