import itertools

import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.clustering.local_clusters import local_clustering, round_to_equal_sizes


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def planted(clusters: int, each: int, dim: int = 64, noise: float = 0.02):
    centres = F.normalize(torch.randn(clusters, dim, generator=generator()), dim=1)
    labels = torch.arange(clusters).repeat_interleave(each)
    points = centres[labels] + noise * torch.randn(len(labels), dim, generator=generator(1))
    return points, labels, centres


def test_recovers_planted_clusters_and_their_means():
    points, labels, _ = planted(8, 16)
    clustering = local_clustering(points, 8, generator())
    nearest = (F.normalize(points, dim=1) @ clustering.centroids.T).argmax(dim=1)
    pairs = set(zip(labels.tolist(), nearest.tolist(), strict=True))
    assert len(pairs) == 8  # a bijection
    unit = F.normalize(points, dim=1)
    for planted_label, cluster in pairs:
        mean = F.normalize(unit[labels == planted_label].mean(0), dim=0)
        torch.testing.assert_close(clustering.centroids[cluster], mean)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 9, 100, 127, 128, 130])
@pytest.mark.parametrize("clusters", [2, 8, 16])
def test_every_cluster_has_its_share(n, clusters):
    clustering = local_clustering(torch.randn(n, 32, generator=generator(n)), clusters, generator())
    k = min(n, clusters)
    assert clustering.centroids.shape == (k, 32)
    assert clustering.sizes.sum() == n
    assert clustering.sizes.min() >= n // k and clustering.sizes.max() <= -(-n // k)
    torch.testing.assert_close(clustering.centroids.norm(dim=1), torch.ones(k))


@pytest.mark.parametrize("n", [1, 2, 5, 15, 16, 17, 127, 128])
@pytest.mark.parametrize("k_min", [1, 2, 5, 16, 17])
def test_no_cluster_is_smaller_than_k_min(n, k_min):
    points = torch.randn(n, 8, generator=generator(n))
    clustering = local_clustering(points, 8, generator(), k_min=k_min)
    k = min(8, n // k_min)
    assert clustering.centroids.shape == (k, 8) and clustering.sizes.shape == (k,)
    assert all(size >= k_min for size in clustering.sizes.tolist())


def test_k_min_changes_nothing_where_clusters_are_larger():
    points, _, _ = planted(8, 16, noise=0.5)
    free, bound = (local_clustering(points, 8, generator(), k_min=k) for k in (1, 16))
    assert torch.equal(free.centroids, bound.centroids)


def test_skewed_points_are_still_split_equally():
    # 120 points in one spot and 8 far away: the published argmax would leave tiny clusters.
    points, _, _ = planted(2, 120)
    points = torch.cat([points[:120], points[-8:]])
    assert local_clustering(points, 8, generator()).sizes.tolist() == [16] * 8


def test_duplicates_and_opposites_give_finite_unit_centroids():
    for points in (torch.ones(20, 4), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).repeat(8, 1)):
        clustering = local_clustering(points, 8, generator())
        torch.testing.assert_close(clustering.centroids.norm(dim=1), torch.ones(8))
        assert clustering.sizes.min() >= len(points) // 8


def test_same_generator_same_bits():
    points, _, _ = planted(8, 16, noise=0.5)
    once, again = (local_clustering(points, 8, generator(3)).centroids for _ in range(2))
    assert torch.equal(once, again)


@pytest.mark.parametrize("bad", [torch.zeros(0, 4), torch.full((3, 4), torch.nan)])
def test_refuses_what_has_no_clusters(bad):
    with pytest.raises(ValueError, match="clustering needs"):
        local_clustering(bad, 2, generator())


@pytest.mark.parametrize(("n", "k"), [(4, 2), (5, 2), (6, 3), (7, 3)])
def test_rounding_is_the_best_of_all_balanced_assignments(n, k):
    plan = torch.randn(n, k, generator=generator(n))
    best = max(
        sum(plan[i, c].item() for i, c in enumerate(choice))
        for choice in itertools.product(range(k), repeat=n)
        if all(n // k <= choice.count(c) <= -(-n // k) for c in range(k))
    )
    rounded = round_to_equal_sizes(plan)
    assert plan.gather(1, rounded[:, None]).sum().item() == pytest.approx(best, abs=1e-5)
