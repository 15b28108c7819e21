import math

import numpy as np
import pytest
import torch

from orchestra_flwr.clustering.sinkhorn_knopp import sinkhorn


def slow_sinkhorn(scores: np.ndarray, sharpness: float, iterations: int) -> np.ndarray:
    """Textbook Sinkhorn-Knopp in float64 with explicit loops."""
    n, k = scores.shape
    kernel = np.exp(sharpness * scores.astype(np.float64))
    r, c = np.ones(n), np.ones(k)
    for _ in range(iterations):
        for i in range(n):
            r[i] = 1 / n / sum(kernel[i, j] * c[j] for j in range(k))
        for j in range(k):
            c[j] = 1 / k / sum(kernel[i, j] * r[i] for i in range(n))
    for i in range(n):
        r[i] = 1 / n / sum(kernel[i, j] * c[j] for j in range(k))
    return r[:, None] * kernel * c[None, :]


def scores(n: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, k, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.mark.parametrize(("n", "k"), [(6, 3), (3, 6), (1, 4), (5, 1)])
def test_agrees_with_the_textbook(n, k):
    cosines = scores(n, k)
    plan = sinkhorn(cosines, iterations=800, tolerance=1e-12)[0]
    expected = slow_sinkhorn(cosines.numpy(), 25.0, 800)
    np.testing.assert_allclose(plan.numpy(), expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("n", "k"), [(128, 8), (130, 16), (7, 5), (800, 128)])
def test_marginals(n, k):
    plan, _ = sinkhorn(scores(n, k), iterations=5000, tolerance=1e-3)
    rows, columns = torch.ones(n).double() / n, torch.ones(k).double() / k
    torch.testing.assert_close(plan.sum(1), rows, rtol=1e-9, atol=0)
    torch.testing.assert_close(plan.sum(0), columns, rtol=1e-3, atol=0)


def test_extreme_cosines_stay_finite_and_positive():
    # Every point sits on one centroid and opposite of the others: the kernel spans exp(50).
    cosines = torch.full((40, 5), -1.0)
    cosines[:, 0] = 1.0
    plan, column = sinkhorn(cosines, iterations=2000)
    assert (plan > 0).all()
    assert torch.isfinite(plan.log()).all()
    assert torch.isfinite(column).all()
    assert math.isclose(plan.sum(), 1.0, rel_tol=1e-9)


def test_a_constant_added_to_the_cosines_changes_nothing():
    cosines = scores(12, 4)
    once, again = (sinkhorn(shifted, tolerance=1e-9)[0] for shifted in (cosines, cosines - 0.5))
    torch.testing.assert_close(once, again, rtol=1e-4, atol=0)


def test_a_good_start_saves_iterations():
    cosines = scores(40, 6)
    plan, column = sinkhorn(cosines, iterations=1000, tolerance=1e-6)
    again, _ = sinkhorn(cosines, iterations=1, column=column)
    torch.testing.assert_close(again, plan, rtol=1e-4, atol=0)
    assert (sinkhorn(cosines, iterations=1)[0] / plan).max() > 1.5
