import math

import numpy as np
import pytest
import torch

from orchestra_flwr.clustering import sinkhorn


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
    given = scores(n, k)
    plan = sinkhorn(given, iterations=800, tolerance=1e-9)[0].exp()
    expected = slow_sinkhorn(given.numpy(), 25.0, 800)
    np.testing.assert_allclose(plan.numpy(), expected, atol=2e-6)


@pytest.mark.parametrize(("n", "k"), [(128, 8), (130, 16), (7, 5), (800, 128)])
def test_marginals(n, k):
    plan = sinkhorn(scores(n, k), iterations=5000, tolerance=1e-3)[0].exp()
    torch.testing.assert_close(plan.sum(1), torch.full((n,), 1 / n), rtol=1e-4, atol=0)
    torch.testing.assert_close(plan.sum(0), torch.full((k,), 1 / k), rtol=2e-3, atol=0)


def test_stable_where_the_plain_kernel_overflows():
    # exp(25 * 100) is far beyond float32; logarithms do not care.
    plan, _ = sinkhorn(scores(16, 4) * 100, iterations=2000)
    assert torch.isfinite(plan).all()
    assert math.isclose(plan.exp().sum(), 1.0, rel_tol=1e-4)


def test_a_constant_added_to_the_scores_changes_nothing():
    given = scores(12, 4)
    torch.testing.assert_close(
        sinkhorn(given, tolerance=1e-5)[0],
        sinkhorn(given + 3, tolerance=1e-5)[0],
        atol=1e-3,
        rtol=0,
    )


def test_a_good_start_saves_iterations():
    given = scores(40, 6)
    plan, column = sinkhorn(given, iterations=1000, tolerance=1e-6)
    again, _ = sinkhorn(given, iterations=1, column=column)
    torch.testing.assert_close(again, plan, atol=1e-4, rtol=0)
    assert (sinkhorn(given, iterations=1)[0] - plan).abs().max() > 0.1
