"""Differentially private clustering of one client's features.

After Chang, Ghazi, Kumar and Manurangsi, "Locally Private k-Means in One Round" (ICML 2021), and
Google's description of its central version. A tree of random hyperplanes (SimHash) sorts the rows
by noisy counts alone, every leaf yields a noisy mean, and k-means clusters these means, which costs
no further privacy. One row is protected: with or without it the result has almost the same
distribution. The training of the encoder is not protected.

Sensitivities hold exactly: rows are truncated to a grid on which float64 sums and products are
exact, so one row cannot change the bits of another.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from orchestra_flwr.clustering.noise import NoiseStream
from orchestra_flwr.privacy.accounting import ClusteringMechanism

# 20 bits of a coordinate, 19 of a hyperplane's, and 14 for their sum: 53, exact in float64.
ROW_GRID = 2.0**-20
PLANE_GRID = 2.0**-16
PLANE_LIMIT = 7.9
MAX_DIMENSIONS = 2**14
RESTARTS = 4
ITERATIONS = 30


@dataclass(frozen=True)
class Leaves:
    """The leaves of a private tree."""

    of_row: Tensor  # (n,) leaf of each row, -1 where its node was pruned. Secret
    counts: Tensor  # (leaves,) noisy counts, each at least the threshold. Public


def private_clustering(
    features: Tensor,
    clusters: int,
    mechanism: ClusteringMechanism,
    key: bytes,
    *,
    k_min: int = 1,
    dimensions: int | None = None,
) -> Tensor:
    """Clusters n features into at most `clusters` centroids with differential privacy.

    Args:
        features: (n, d) target features, one row an image, n >= 1 and d <= 16384. Rows are
            brought to the unit sphere; rows of zeros stay zeros.
        clusters: the paper's L, at least 1.
        mechanism: the noise, from :func:`~orchestra_flwr.privacy.accounting.calibrate`.
        key: 32 bytes, the source of all randomness. Whoever has it can subtract the noise.
        k_min: minimum of a leaf's noisy count. It keeps weak noise (a large epsilon) from sending
            single rows.
        dimensions: of the subspace, the same for all clients, onto which rows are projected before
            they are clustered, below d; None: no projection. The centroids lie in it.

    Returns:
        (k, d) unit vectors, 0 <= k <= clusters; at most as many as leaves, and none if the noisy
        number of rows is not positive (few rows, much noise).

    Raises:
        ValueError: no features, features that are not finite or too long, no clusters, or no
            fewer dimensions than there are.
    """
    if clusters < 1:
        raise ValueError(f"clusters must be at least 1, not {clusters}")
    points = rows_on_grid(features)
    basis = None if dimensions is None else shared_basis(dimensions, points.shape[1])
    if basis is not None:
        points = rows_on_grid(points @ basis.T)  # exact: 20 and 16 bits, and no sum above 1
    noise = NoiseStream(key)
    planes = random_planes(mechanism.depth, points.shape[1], noise)
    bits = points @ planes.T > 0
    leaves = grow_tree(bits, points.shape[1], clusters, mechanism, noise, k_min=k_min)
    sums = noisy_sums(points, leaves, mechanism.sum_noise, noise)
    means = sums / leaves.counts[:, None]
    means = means / means.norm(dim=1, keepdim=True).clamp(min=1)  # no true mean is longer
    centroids = weighted_kmeans(means, leaves.counts, clusters, noise)
    if basis is not None:
        centroids = centroids @ basis
    # A centroid of length zero points nowhere; only leaves that cancel out exactly give one.
    centroids = centroids[centroids.norm(dim=1) > ROW_GRID]
    return F.normalize(centroids, dim=1).to(device=features.device, dtype=torch.float32)


def rows_on_grid(features: Tensor) -> Tensor:
    """(n, d) float64 rows of norm at most 1, and not a bit more, on a grid of 2^-20.

    Raises:
        ValueError: no features, features that are not finite, or of too many dimensions.
    """
    if features.ndim != 2 or 0 in features.shape or features.shape[1] > MAX_DIMENSIONS:
        shape = tuple(features.shape)
        raise ValueError(f"private clustering needs features (n, d <= {MAX_DIMENSIONS}): {shape}")
    if not torch.isfinite(features).all():
        raise ValueError("private clustering needs finite features")
    unit = F.normalize(features.detach().cpu().double(), dim=1)
    # Truncation shortens; the factor outweighs the rounding of the norm.
    return (unit * (1 - 1e-12) / ROW_GRID).trunc() * ROW_GRID


def random_planes(depth: int, dimensions: int, noise: NoiseStream) -> Tensor:
    """(depth, d) Gaussian normals of hyperplanes, on a grid, independent of any data."""
    planes = noise.gaussian(depth, dimensions).clamp(-PLANE_LIMIT, PLANE_LIMIT)
    return (planes / PLANE_GRID).round() * PLANE_GRID


@lru_cache(maxsize=4)
def shared_basis(dimensions: int, of: int) -> Tensor:
    """(dimensions, of) orthonormal rows, up to a grid of 2^-16, the same for all clients.

    Independent of any data: a projection costs no privacy.

    Raises:
        ValueError: not below `of`.
    """
    if not 0 < dimensions < of:
        raise ValueError(f"dimensions must be below {of}, not {dimensions}")
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(of, dimensions, dtype=torch.float64, generator=generator)
    orthonormal: Tensor = torch.linalg.qr(random).Q
    return (orthonormal.T / PLANE_GRID).round() * PLANE_GRID


def threshold(
    noisy_n: float, dimensions: int, clusters: int, mechanism: ClusteringMechanism
) -> int:
    """The m of the paper's tree: a node of fewer rows is pruned, one of 3 m or more branches.

    A mean of m rows has noise of norm .1, unless so many rows would leave fewer than 2 k nodes.
    """
    precise = int(10 * math.sqrt(dimensions) * mechanism.sum_noise)
    return max(1, min(precise, int(noisy_n // (2 * clusters))))


def grow_tree(
    bits: Tensor,
    dimensions: int,
    clusters: int,
    mechanism: ClusteringMechanism,
    noise: NoiseStream,
    *,
    k_min: int = 1,
) -> Leaves:
    """Sorts rows into leaves by noisy counts, one level after another.

    Each row is counted at most once a level, so depth + 1 times, and lies in at most one leaf.
    A node of which no child is kept is a leaf itself; noisy counts alone decide this.

    Args:
        bits: (n, depth) the side of each hyperplane on which a row lies.
        dimensions: the d of the rows.
        mechanism: the noise of counts, and that of sums, which the threshold depends on.
        noise: where noise comes from.
        k_min: least noisy count of a leaf.
    """
    node = torch.zeros(len(bits), dtype=torch.long)  # in the current level; -1: not there
    counts = noisy_counts(node, 1, mechanism.count_noise, noise)
    m = max(k_min, threshold(counts.item(), dimensions, clusters, mechanism))
    node, counts = prune(node, counts, m)
    leaf, leaves, leaf_counts = torch.full_like(node, -1), 0, [counts[:0]]
    for level, side in enumerate(F.pad(bits, (0, 1)).long().T):
        branches = (counts >= 3 * m) & (level < mechanism.depth)
        child = lookup(renumber(branches), node)
        child = torch.where(child < 0, -1, 2 * child + side)
        below = noisy_counts(child, 2 * int(branches.sum()), mechanism.count_noise, noise)
        branches[branches.clone()] = (below >= m).view(-1, 2).any(1)
        new_leaf = lookup(renumber(~branches), node)
        leaf = torch.where(new_leaf < 0, leaf, leaves + new_leaf)
        leaf_counts.append(counts[~branches])
        leaves += len(leaf_counts[-1])
        node, counts = prune(child, below, m)
    return Leaves(leaf, torch.cat(leaf_counts))


def noisy_counts(node: Tensor, nodes: int, a: float, noise: NoiseStream) -> Tensor:
    """(nodes,) rows in each node plus discrete Laplace noise, for empty nodes as for others."""
    return node[node >= 0].bincount(minlength=nodes) + noise.discrete_laplace(nodes, a)


def noisy_sums(points: Tensor, leaves: Leaves, scale: float, noise: NoiseStream) -> Tensor:
    """(leaves, d) sum of each leaf's rows plus Gaussian noise of standard deviation `scale`."""
    sums = points.new_zeros(len(leaves.counts), points.shape[1])
    inside = leaves.of_row >= 0
    sums.index_add_(0, leaves.of_row[inside], points[inside])
    # Both are on the grid of the rows: the least bits do not reveal which rows were added.
    return sums + (scale * noise.gaussian(*sums.shape) / ROW_GRID).round() * ROW_GRID


def prune(node: Tensor, counts: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The level without nodes of fewer than m: new numbers of the rows' nodes, and counts."""
    stays = counts >= m
    return lookup(renumber(stays), node), counts[stays]


def renumber(stays: Tensor) -> Tensor:
    """(nodes,) 0, 1, 2 ... where a node stays and -1 elsewhere."""
    return torch.where(stays, stays.cumsum(0) - 1, -1)


def lookup(table: Tensor, index: Tensor) -> Tensor:
    """table[index], and -1 where the index is -1."""
    return torch.cat([table, table.new_full((1,), -1)])[index]


def weighted_kmeans(points: Tensor, weights: Tensor, k: int, noise: NoiseStream) -> Tensor:
    """k-means of weighted points: the best of a few runs from k-means++ seeds.

    Arthur and Vassilvitskii (2007), Lloyd (1982). Works on public values alone.

    Args:
        points: (n, d).
        weights: (n,) positive.
        noise: where random seeds come from.

    Returns:
        (min(k, n), d) weighted means of the clusters.
    """
    if len(points) <= k:
        return points
    weights = weights.to(points.dtype)
    starts = (kmeans_plus_plus(points, weights, k, noise) for _ in range(RESTARTS))
    runs = [lloyd(points, weights, start) for start in starts]
    return min(runs, key=lambda run: run[1])[0]


def kmeans_plus_plus(points: Tensor, weights: Tensor, k: int, noise: NoiseStream) -> Tensor:
    """(k, d) of the points, each drawn by weight times squared distance to those before it."""
    chosen: list[int] = []
    chance = weights
    for draw in noise.uniform(k).tolist():
        chance = chance if chance.sum() > 0 else weights  # nothing but duplicates is left
        cumulative = chance.cumsum(0)
        chosen.append(int((cumulative <= draw * cumulative[-1]).sum().clamp(max=len(points) - 1)))
        distance = squared_distances(points, points[chosen]).min(1).values
        chance = weights * distance.where(distance > 1e-12, 0)  # rounding is no distance
    return points[chosen]


def lloyd(points: Tensor, weights: Tensor, centroids: Tensor) -> tuple[Tensor, float]:
    """Alternates assignments and weighted means until nothing changes.

    Returns (k, d) centroids and the weighted sum of squared distances to them. A cluster that
    lost all its points keeps its centroid.
    """
    last = None
    for _ in range(ITERATIONS):
        distance, nearest = squared_distances(points, centroids).min(1)
        if last is not None and torch.equal(nearest, last):
            break
        last = nearest
        members = F.one_hot(nearest, len(centroids)) * weights[:, None]
        mass = members.sum(0)[:, None]
        centroids = torch.where(mass > 0, members.T @ points / mass.clamp(min=1e-300), centroids)
    return centroids, float((weights * distance).sum())


def squared_distances(points: Tensor, centroids: Tensor) -> Tensor:
    """(n, k) squared Euclidean distances."""
    return (points[:, None] - centroids).square().sum(2)
