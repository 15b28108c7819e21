import math

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from orchestra_flwr.clustering import private_kmeans
from orchestra_flwr.clustering.noise import NoiseStream
from orchestra_flwr.clustering.private_kmeans import (
    Leaves,
    grow_tree,
    noisy_sums,
    private_clustering,
)
from orchestra_flwr.privacy.accounting import ClusteringMechanism

UNLIKELY = 1e-4  # seeds are fixed: a test that passes today passes always
STRONG = ClusteringMechanism(0.8, 1e-3, 20, 3.19, 0.0157)
WEAK = ClusteringMechanism(10, 1e-3, 20, 0.417, 0.120)
SILENT = ClusteringMechanism(1e6, 1e-3, 20, 1e-9, 100.0)


def key(seed: int = 0) -> bytes:
    return seed.to_bytes(32)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def planted(n: int, dim: int = 512, clusters: int = 5, seed: int = 0):
    centres = F.normalize(torch.randn(clusters, dim, generator=generator(seed)), dim=1)
    labels = torch.randint(clusters, (n,), generator=generator(seed + 1))
    noise = 0.5 / math.sqrt(dim) * torch.randn(n, dim, generator=generator(seed + 2))
    return centres[labels] + noise, centres


def utility(n: int, mechanism: ClusteringMechanism, dim: int = 512, seeds: int = 8) -> float:
    """Mean cosine of the true centres with the nearest found one."""
    total = 0.0
    for seed in range(seeds):
        points, centres = planted(n, dim, seed=10 * seed)
        centroids = private_clustering(points, 8, mechanism, key(seed))
        total += float((centres @ centroids.T).max(1).values.mean()) if len(centroids) else 0.0
    return total / seeds


def test_without_noise_it_recovers_planted_clusters():
    points, centres = planted(500)
    centroids = private_clustering(points, 8, SILENT, key())
    assert centroids.shape == (8, 512) and centroids.dtype == torch.float32
    torch.testing.assert_close(centroids.norm(dim=1), torch.ones(8))
    assert (centres @ centroids.T).max(1).values.min() > 0.8


def test_utility_rises_with_epsilon_n_and_fewer_dimensions():
    # The published implementation: .18, .67, .47 and .89; .78 in 32 dimensions.
    few, many = utility(128, STRONG), utility(500, STRONG)
    assert few < many < utility(500, WEAK)
    assert few < utility(128, WEAK) < utility(500, WEAK)
    assert utility(500, WEAK) > 0.85
    assert utility(500, STRONG, dim=32) > many + 0.1


@pytest.mark.parametrize("n", [1, 2, 7, 128])
def test_number_of_centroids_shrinks_and_may_be_zero(n):
    points, _ = planted(n, dim=16)
    sizes = [len(private_clustering(points, 4, STRONG, key(seed))) for seed in range(30)]
    assert max(sizes) <= 4
    assert len(private_clustering(points, 4, SILENT, key())) <= min(n, 4)
    if n <= 7:
        assert 0 in sizes  # the noisy number of rows is negative every other time
        assert all(
            private_clustering(points, 4, STRONG, key(seed)).shape == (size, 16)
            for seed, size in enumerate(sizes)
        )


@pytest.mark.parametrize("k_min", [2, 40])
def test_no_leaf_has_fewer_rows_than_k_min_by_its_noisy_count(k_min):
    """Without any noise to speak of that is k-anonymity; with noise, the noisy count's."""
    points = private_kmeans.rows_on_grid(planted(300, dim=32)[0])
    for mechanism in (SILENT, WEAK):
        noise = NoiseStream(key(3))
        bits = points @ private_kmeans.random_planes(20, 32, noise).T > 0
        leaves = grow_tree(bits, 32, 100, mechanism, noise, k_min=k_min)
        assert len(leaves.counts) > 1 and leaves.counts.min() >= k_min
        if mechanism is SILENT:
            assert leaves.of_row[leaves.of_row >= 0].bincount().min() >= k_min
    assert len(private_clustering(points[:39], 4, SILENT, key(), k_min=40)) == 0


@pytest.mark.parametrize(("rows", "counts"), [(5, [5]), (6, [3, 3])])
def test_a_node_of_three_times_the_least_number_of_rows_branches(rows, counts):
    bits = torch.zeros(rows, 20, dtype=torch.bool)
    bits[:3, 0] = True
    leaves = grow_tree(bits, 32, 100, SILENT, NoiseStream(key()), k_min=2)
    assert leaves.counts.tolist() == counts


def test_one_cluster_of_duplicates_and_rows_of_zeros():
    same = F.normalize(torch.ones(300, 8), dim=1)
    centroids = private_clustering(same, 4, SILENT, key())
    assert len(centroids) == 1
    torch.testing.assert_close(centroids, same[:1], atol=1e-5, rtol=0)
    assert len(private_clustering(torch.zeros(300, 8), 4, WEAK, key())) <= 4


def test_same_key_same_bits_whatever_the_order_of_rows():
    points, _ = planted(300, dim=64)
    once = private_clustering(points, 8, WEAK, key(3))
    assert torch.equal(once, private_clustering(points, 8, WEAK, key(3)))
    order = torch.randperm(300, generator=generator(4))
    assert torch.equal(once, private_clustering(points[order], 8, WEAK, key(3)))
    assert not torch.equal(once[0], private_clustering(points, 8, WEAK, key(5))[0])


@pytest.mark.parametrize(
    "bad", [torch.zeros(0, 4), torch.zeros(3, 0), torch.zeros(3), torch.zeros(1, 2**14 + 1)]
)
def test_refuses_shapes(bad):
    with pytest.raises(ValueError, match="needs features"):
        private_clustering(bad, 2, WEAK, key())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_refuses_what_is_not_finite(value):
    with pytest.raises(ValueError, match="finite"):
        private_clustering(torch.full((3, 4), value), 2, WEAK, key())


def test_refuses_no_clusters():
    with pytest.raises(ValueError, match="clusters"):
        private_clustering(torch.ones(3, 4), 0, WEAK, key())


# The projection.


def test_projected_rows_are_clustered_in_one_subspace_for_all():
    points, _ = planted(300, dim=64)
    basis = private_kmeans.shared_basis(16, 64)
    torch.testing.assert_close(basis @ basis.T, torch.eye(16).double(), atol=1e-4, rtol=0)
    centroids = private_clustering(points, 8, WEAK, key(3), dimensions=16)
    unit = F.normalize(points.double(), dim=1)
    expected = private_clustering(unit @ basis.T, 8, WEAK, key(3)).double() @ basis
    torch.testing.assert_close(centroids.norm(dim=1), torch.ones(len(centroids)))
    torch.testing.assert_close(centroids, F.normalize(expected, dim=1).float(), atol=1e-3, rtol=0)
    outside = points - (points.double() @ basis.T @ basis).float()
    assert (centroids @ outside.T).abs().max() < 1e-3


def test_a_projected_row_has_no_bit_of_another():
    rows, basis = (
        private_kmeans.rows_on_grid(planted(50, dim=64)[0]),
        private_kmeans.shared_basis(16, 64),
    )
    whole = (rows / private_kmeans.ROW_GRID).long(), (basis / private_kmeans.PLANE_GRID).long()
    exact = (whole[0] @ whole[1].T).double() * private_kmeans.ROW_GRID * private_kmeans.PLANE_GRID
    assert torch.equal(rows @ basis.T, exact)


@pytest.mark.parametrize("dimensions", [0, 4, 5])
def test_refuses_to_project_to_no_fewer_dimensions(dimensions):
    with pytest.raises(ValueError, match="dimensions must be below 4"):
        private_clustering(torch.ones(3, 4), 2, WEAK, key(), dimensions=dimensions)


# Sensitivity: what the calibration takes for granted.


def transcript(points, planes, monkeypatch, mechanism, replay=None):
    """Grows a tree; gives its leaves, the true counts of each level and the noisy ones.

    With `replay`, the noisy counts are those of another run: the same public outcome.
    """
    true, noisy = [], []
    honest = private_kmeans.noisy_counts

    def spy(node, nodes, a, noise):
        true.append(node[node >= 0].bincount(minlength=nodes))
        noisy.append(honest(node, nodes, a, noise) if replay is None else replay[len(noisy)])
        return noisy[-1]

    with monkeypatch.context() as patch:
        patch.setattr(private_kmeans, "noisy_counts", spy)
        bits = points @ planes.T > 0
        leaves = grow_tree(bits, points.shape[1], 8, mechanism, NoiseStream(key(1)))
    return leaves, true, noisy


@pytest.mark.parametrize("mechanism", [STRONG, WEAK], ids=["strong", "weak"])
@pytest.mark.parametrize("without", [0, 77, 299])
def test_one_row_changes_one_count_a_level_by_one_and_one_sum_by_norm_one(
    without, mechanism, monkeypatch
):
    points = private_kmeans.rows_on_grid(planted(300, dim=32)[0])
    planes = private_kmeans.random_planes(mechanism.depth, 32, NoiseStream(key()))
    rest = torch.arange(300) != without
    all_leaves, counts, public = transcript(points, planes, monkeypatch, mechanism)
    leaves, fewer, _ = transcript(points[rest], planes, monkeypatch, mechanism, replay=public)
    assert len(counts) == mechanism.depth + 2  # the root, each level, and below the last: none
    assert len(counts[-1]) == 0
    changes = [int((a - b).abs().sum()) for a, b in zip(counts, fewer, strict=True)]
    assert changes[0] == 1 and max(changes) == 1 and sum(changes) <= mechanism.depth + 1
    # Nobody else's place depends on that row; and without noise one sum differs by it exactly.
    assert torch.equal(all_leaves.of_row[rest], leaves.of_row)
    assert torch.equal(all_leaves.counts, leaves.counts)
    sums = [
        noisy_sums(p, tree_leaves, 0.0, NoiseStream(key()))
        for p, tree_leaves in ((points, all_leaves), (points[rest], leaves))
    ]
    change = sums[0] - sums[1]
    touched = change.abs().sum(1) > 0
    leaf = int(all_leaves.of_row[without])
    assert int(touched.sum()) == (leaf >= 0)
    assert leaf < 0 or torch.equal(change[leaf], points[without])
    assert float(change.norm()) <= 1


@pytest.mark.parametrize("dim", [1, 3, 512])
def test_no_row_is_longer_than_one_and_all_lie_on_the_grid(dim):
    huge = torch.randn(1000, dim, generator=generator()) * 1e30
    rows = private_kmeans.rows_on_grid(torch.cat([huge, huge * 1e-45, torch.eye(dim)]))
    integers = rows / private_kmeans.ROW_GRID
    assert torch.equal(integers, integers.round())
    assert integers.long().square().sum(1).max() <= 2**40  # exact: norms of at most 1
    assert rows[:1000].norm(dim=1).min() > 0.999


def test_the_tree_knows_noisy_counts_only(monkeypatch):
    """Other rows, the same noisy counts: the same leaves."""
    planes = private_kmeans.random_planes(WEAK.depth, 32, NoiseStream(key()))
    one, other = (private_kmeans.rows_on_grid(planted(200, dim=32, seed=s)[0]) for s in (0, 50))
    leaves, _, public = transcript(one, planes, monkeypatch, WEAK)
    replayed, _, _ = transcript(other, planes, monkeypatch, WEAK, replay=public)
    assert torch.equal(leaves.counts, replayed.counts)
    assert not torch.equal(leaves.of_row, replayed.of_row)


# Noise: what the calibration asked for is what is added.


def test_sums_get_the_calibrated_noise():
    points = private_kmeans.rows_on_grid(planted(300, dim=128)[0])
    leaves = Leaves(torch.arange(300) % 200 - 1, torch.full((199,), 9))
    sums = noisy_sums(points, leaves, STRONG.sum_noise, NoiseStream(key(7)))
    truth = torch.stack([points[leaves.of_row == leaf].sum(0) for leaf in range(199)])
    residual = ((sums - truth) / STRONG.sum_noise).flatten().numpy()
    assert stats.kstest(residual, "norm").pvalue > UNLIKELY
    assert stats.kstest(1.1 * residual, "norm").pvalue < UNLIKELY
    assert abs(residual.mean()) < 4 / math.sqrt(residual.size)
    assert residual.var() == pytest.approx(1, abs=0.03)
    assert torch.equal(sums / private_kmeans.ROW_GRID, (sums / private_kmeans.ROW_GRID).round())


def test_counts_get_the_calibrated_noise():
    node = torch.arange(-5, 300)
    noisy = private_kmeans.noisy_counts(node, 100_000, STRONG.count_noise, NoiseStream(key(9)))
    residual = noisy - node[node >= 0].bincount(minlength=100_000)
    assert abs(residual[:300].double().mean()) < 4 * 90 / math.sqrt(300)
    variance = 1 / (2 * math.sinh(STRONG.count_noise / 2) ** 2)
    assert residual.double().var() == pytest.approx(variance, rel=0.03)


@pytest.mark.slow
def test_every_count_of_a_run_has_the_calibrated_noise(monkeypatch):
    points = private_kmeans.rows_on_grid(planted(300, dim=32)[0])
    planes = private_kmeans.random_planes(STRONG.depth, 32, NoiseStream(key()))
    residuals = []
    noise = NoiseStream(key(8))
    honest = private_kmeans.noisy_counts

    def spy(node, nodes, a, stream):
        noisy = honest(node, nodes, a, stream)
        residuals.append(noisy - node[node >= 0].bincount(minlength=nodes))
        return noisy

    monkeypatch.setattr(private_kmeans, "noisy_counts", spy)
    for _ in range(200):
        # One call of the first level only: later ones are seen only if the first was large.
        grow_tree(points @ planes.T > 0, 32, 8, STRONG, noise)
    draws = torch.cat(residuals).double().numpy()
    assert draws.size > 1000
    # Steps of 1 are small beside a scale of 64.
    assert stats.kstest(draws, stats.laplace(scale=1 / STRONG.count_noise).cdf).pvalue > UNLIKELY
