import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.clustering.sinkhorn_knopp import sinkhorn
from orchestra_flwr.clustering.solvers.alternating import global_clustering
from orchestra_flwr.clustering.solvers.gradient import gradient_clustering


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def disagreement(points: torch.Tensor, centroids: torch.Tensor) -> float:
    """The published objective: mean negative cosine of assignment and softmax, in loops."""
    cosines = points @ centroids.T
    plan = sinkhorn(cosines, iterations=1000, tolerance=1e-6)[0].float()
    total = 0.0
    for wanted, row in zip(plan, cosines, strict=True):
        predicted = torch.tensor([float(c) / 0.1 for c in row]).exp()
        predicted /= predicted.sum()
        total -= float(wanted @ predicted / (wanted.norm() * predicted.norm()))
    return total / len(points)


def points(n: int = 60, dim: int = 16) -> torch.Tensor:
    centres = F.normalize(torch.randn(6, dim, generator=generator()), dim=1)
    noise = 0.1 * torch.randn(n, dim, generator=generator(1))
    return F.normalize(centres.repeat(n // 6, 1) + noise, dim=1)


def test_lowers_the_published_objective():
    begin = F.normalize(torch.randn(6, 16, generator=generator(2)), dim=1)
    few, many = (
        gradient_clustering(points(), begin, generator(), steps=steps) for steps in (1, 500)
    )
    assert disagreement(points(), few) < disagreement(points(), begin)
    assert disagreement(points(), many) < disagreement(points(), few) - 0.05
    torch.testing.assert_close(many.norm(dim=1), torch.ones(6))


def test_one_step_by_hand():
    """SGD from rest: the gradient by finite differences, the decay, then the norm."""
    begin = F.normalize(torch.randn(2, 3, generator=generator(3)), dim=1).double()
    data = F.normalize(torch.randn(4, 3, generator=generator(4)), dim=1).double()
    plan = sinkhorn(data @ begin.T, tolerance=1e-2)[0]

    def loss(centroids: torch.Tensor) -> float:
        softmax = F.softmax(data @ centroids.T / 0.1, dim=1)
        return -float(F.cosine_similarity(plan, softmax, dim=1).mean())

    gradient = torch.zeros_like(begin)
    for i in range(2):
        for j in range(3):
            step = torch.zeros_like(begin)
            step[i, j] = 1e-6
            gradient[i, j] = (loss(begin + step) - loss(begin - step)) / 2e-6
    expected = F.normalize(begin - 0.01 * (gradient + 1e-4 * begin), dim=1).float()
    moved = gradient_clustering(data.float(), begin.float(), generator(), steps=1)
    torch.testing.assert_close(moved, expected, atol=1e-5, rtol=0)


def test_zeros_begin_at_random():
    first = gradient_clustering(points(), torch.zeros(6, 16), generator(7), steps=2)
    torch.testing.assert_close(first.norm(dim=1), torch.ones(6))
    assert torch.equal(
        first, gradient_clustering(points(), torch.zeros(6, 16), generator(7), steps=2)
    )


@pytest.mark.slow
def test_our_solver_moves_more_similarity_than_the_published_one():
    data = points(120)
    ours = global_clustering(data, torch.zeros(8, 16), generator())
    published = gradient_clustering(data, torch.zeros(8, 16), generator())

    def transported(centroids: torch.Tensor) -> float:
        return float((sinkhorn(data @ centroids.T)[0] * (data @ centroids.T)).sum())

    assert transported(ours) >= transported(published)


def test_independent_of_the_order_of_clients():
    order = torch.randperm(60, generator=generator(5))
    for begin in (torch.zeros(6, 16), F.normalize(points()[::10], dim=1)):
        once = gradient_clustering(points(), begin, generator(), steps=20)
        assert torch.equal(once, gradient_clustering(points()[order], begin, generator(), steps=20))
