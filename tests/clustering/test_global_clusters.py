import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.clustering import global_clustering, sinkhorn


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def planted(clusters: int, each: int, dim: int = 64, noise: float = 0.02):
    centres = F.normalize(torch.randn(clusters, dim, generator=generator()), dim=1)
    points = centres.repeat(each, 1)
    return points + noise * torch.randn(points.shape, generator=generator(1)), centres


def test_recovers_planted_clusters():
    points, centres = planted(16, 10)
    found = global_clustering(points, 16, generator())
    similarity = found @ centres.T
    assert similarity.argmax(1).unique().numel() == 16
    assert similarity.max(1).values.min() > 0.97


def test_independent_of_the_order_of_clients():
    points, _ = planted(16, 10, noise=0.3)
    order = torch.randperm(len(points), generator=generator(5))
    once = global_clustering(points, 16, generator())
    assert torch.equal(once, global_clustering(points[order], 16, generator()))


def test_clusters_have_equal_mass():
    points = torch.randn(200, 16, generator=generator(2))
    found = global_clustering(points, 10, generator())
    mass = sinkhorn(F.normalize(points, dim=1) @ found.T)[0].sum(0)
    torch.testing.assert_close(mass.float(), torch.full((10,), 0.1), rtol=0.02, atol=0)


@pytest.mark.parametrize("n", [1, 3, 31, 32])
def test_fewer_centroids_than_clusters(n):
    points = F.normalize(torch.randn(n, 64, generator=generator(n)), dim=1)
    found = global_clustering(points, 32, generator())
    assert found.shape == (32, 64)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(32))
    # Every local centroid is represented.
    assert (points @ found.T).max(1).values.min() > 0.98


def test_duplicates_stay_finite():
    found = global_clustering(torch.ones(40, 8), 16, generator())
    torch.testing.assert_close(found.norm(dim=1), torch.ones(16))


def test_better_than_random_centroids():
    """The objective that Sinkhorn clustering raises: transported similarity."""

    def objective(points: torch.Tensor, centroids: torch.Tensor) -> float:
        score = F.normalize(points, dim=1) @ centroids.T
        return float((sinkhorn(score)[0] * score).sum())

    points, _ = planted(12, 20, noise=0.1)
    chance = F.normalize(torch.randn(12, 64, generator=generator(9)), dim=1)
    assert objective(points, global_clustering(points, 12, generator())) > 2 * objective(
        points, chance
    )


def test_refuses_nan():
    with pytest.raises(ValueError, match="finite"):
        global_clustering(torch.full((3, 4), torch.nan), 2, generator())
