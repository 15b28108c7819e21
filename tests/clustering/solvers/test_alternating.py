import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment

from orchestra_flwr.clustering.sinkhorn_knopp import sinkhorn
from orchestra_flwr.clustering.solvers.alternating import global_clustering

NONE = torch.zeros(16, 64)  # before the first round


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unit(rows: int, seed: int, dim: int = 64) -> torch.Tensor:
    return F.normalize(torch.randn(rows, dim, generator=generator(seed)), dim=1)


def planted(clusters: int, each: int, dim: int = 64, noise: float = 0.02):
    centres = F.normalize(torch.randn(clusters, dim, generator=generator()), dim=1)
    points = centres.repeat(each, 1)
    return points + noise * torch.randn(points.shape, generator=generator(1)), centres


def test_recovers_planted_clusters():
    points, centres = planted(16, 10)
    centroids = global_clustering(points, NONE, generator())
    similarity = centroids @ centres.T
    assert similarity.argmax(1).unique().numel() == 16
    assert similarity.max(1).values.min() > 0.97


@pytest.mark.parametrize("previous", [NONE, unit(16, 3)])
def test_independent_of_the_order_of_clients(previous):
    points, _ = planted(16, 10, noise=0.3)
    order = torch.randperm(len(points), generator=generator(5))
    once = global_clustering(points, previous, generator())
    assert torch.equal(once, global_clustering(points[order], previous, generator()))


def test_clusters_have_equal_mass():
    points = torch.randn(200, 16, generator=generator(2))
    centroids = global_clustering(points, torch.zeros(10, 16), generator())
    mass = sinkhorn(F.normalize(points, dim=1) @ centroids.T)[0].sum(0)
    torch.testing.assert_close(mass.float(), torch.full((10,), 0.1), rtol=0.02, atol=0)


def test_goes_halfway_from_the_last_rounds_centroids():
    """To where it would go without damping, along the great circle."""
    points, _ = planted(16, 10, noise=0.3)
    previous = unit(16, 3)
    free = global_clustering(points, previous, generator(), damping=0)
    damped = global_clustering(points, previous, generator())
    torch.testing.assert_close(damped, F.normalize(previous + free, dim=1))
    angle, half = ((centroids * previous).sum(1).acos() for centroids in (free, damped))
    torch.testing.assert_close(half, angle / 2, atol=1e-3, rtol=0)


def test_the_same_points_keep_the_clusters_and_their_numbers():
    points, _ = planted(16, 10)
    first = global_clustering(points, NONE, generator(1))
    again = global_clustering(points, first, generator(2))
    torch.testing.assert_close(again, first, atol=1e-3, rtol=0)


def test_comes_to_the_clusters_of_points_that_stay():
    points, centres = planted(16, 10)
    centroids = unit(16, 3)
    for _ in range(8):
        centroids = global_clustering(points, centroids, generator())
    assert (centroids @ centres.T).max(1).values.min() > 0.95


@pytest.mark.parametrize("n", [1, 3, 31, 32])
def test_fewer_centroids_than_clusters_in_the_first_round(n):
    points = unit(n, n)
    centroids = global_clustering(points, torch.zeros(32, 64), generator())
    assert centroids.shape == (32, 64)
    torch.testing.assert_close(centroids.norm(dim=1), torch.ones(32))
    # Every local centroid is represented.
    assert (points @ centroids.T).max(1).values.min() > 0.98


def test_fewer_centroids_than_clusters_move_one_each_and_no_other():
    """The cheapest ones, as scipy has them."""
    points, previous = unit(5, 1), unit(16, 3)
    centroids = global_clustering(points, previous, generator())
    rows, columns = linear_sum_assignment(-(points @ previous.T).numpy())
    expected = previous.clone()
    expected[columns] = F.normalize(previous[columns] + points[rows], dim=1)
    torch.testing.assert_close(centroids, expected)


def test_what_is_opposite_to_the_last_centroid_replaces_it():
    """Between the two there is no direction that stays near either."""
    previous = torch.eye(4)[:1]
    torch.testing.assert_close(global_clustering(-previous, previous, generator()), -previous)


@pytest.mark.parametrize("previous", [NONE[:, :8], unit(16, 3, 8)])
def test_duplicates_stay_finite(previous):
    centroids = global_clustering(torch.ones(40, 8), previous, generator())
    torch.testing.assert_close(centroids.norm(dim=1), torch.ones(16))


def test_better_than_random_centroids():
    """The objective that Sinkhorn clustering raises: transported similarity."""

    def objective(points: torch.Tensor, centroids: torch.Tensor) -> float:
        score = F.normalize(points, dim=1) @ centroids.T
        return float((sinkhorn(score)[0] * score).sum())

    points, _ = planted(12, 20, noise=0.1)
    solution = global_clustering(points, torch.zeros(12, 64), generator())
    assert objective(points, solution) > 2 * objective(points, unit(12, 9))


@pytest.mark.parametrize("previous", [NONE[:2, :4], unit(2, 3, 4)])
def test_refuses_nan(previous):
    with pytest.raises(ValueError, match="finite"):
        global_clustering(torch.full((3, 4), torch.nan), previous, generator())
