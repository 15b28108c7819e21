"""Clusters of equal mass on the unit sphere: the core that local and global clustering share."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from orchestra_flwr.clustering.sinkhorn_knopp import sinkhorn

BETWEEN = 5  # Sinkhorn iterations between two moves of the centroids
OVERSHOOT = 0.5  # of a move; it saves a third of the moves
MOVES = 10  # of the centroids
SAME = 1e-6  # distance that rounding leaves between duplicates


def unit_rows(points: Tensor) -> Tensor:
    """(n, d) points in float32 on the unit sphere.

    Raises:
        ValueError: there are no points, or some are not finite.
    """
    if points.ndim != 2 or points.shape[0] == 0:
        raise ValueError(f"clustering needs points (n, d) with n >= 1, not {tuple(points.shape)}")
    if not torch.isfinite(points).all():
        raise ValueError("clustering needs finite points")
    return F.normalize(points.float(), dim=1)


def in_canonical_order(points: Tensor) -> Tensor:
    """The rows sorted by their bytes, so that what follows cannot depend on their order."""
    rows = np.ascontiguousarray(points.cpu().numpy())
    keys = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
    return points[torch.from_numpy(keys.argsort()).to(points.device)]


def equal_mass_clustering(points: Tensor, centroids: Tensor) -> Tensor:
    """Alternates Sinkhorn plans with the centroids that are optimal for them, in closed form.

    The optimal centroid for a plan is the normalised mean of the points that it weights, so each
    pair of steps raises the regularised transport objective. All moves but the last overshoot that
    optimum: fewer moves then reach the same result.

    Args:
        points: (n, d) unit vectors.
        centroids: (k, d) unit vectors to begin with.

    Returns:
        (k, d) unit vectors.
    """
    column = None
    for move in range(1, MOVES + 1):
        plan, column = sinkhorn(points @ centroids.T, iterations=BETWEEN, column=column)
        means = F.normalize(plan.to(points.dtype).T @ points, dim=1)
        # Points that cancel each other out have no mean direction: the centroid stays.
        means = torch.where(means.norm(dim=1, keepdim=True) > 0.5, means, centroids)
        if move < MOVES:
            means = F.normalize(means + OVERSHOOT * (means - centroids), dim=1)
        centroids = means
    return centroids


def spread_out(points: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """k of n >= k unit vectors by k-means++ seeding (Arthur and Vassilvitskii, 2007).

    Duplicates are chosen only when no distinct point is left.

    Args:
        points: (n, d) unit vectors.
        k: how many of them.
        generator: CPU generator.

    Returns:
        (k, d) chosen rows.
    """
    # numpy, ten times as fast as torch for so few numbers.
    draws = torch.rand(k, generator=generator, dtype=torch.float64).numpy()
    n = len(points)
    free = np.ones(n, dtype=bool)
    weights = np.ones(n)
    nearest = np.full(n, np.inf)
    chosen: list[int] = []
    for draw in draws:
        cumulative = weights.cumsum()
        index = int(cumulative.searchsorted(draw * cumulative[-1], side="right"))
        chosen.append(index)
        free[index] = False
        distances = (1 - points @ points[index]).double().cpu().numpy()
        np.minimum(nearest, distances, out=nearest)
        weights = np.where(free & (nearest > SAME), nearest, 0.0)
        if not weights.any():
            weights = free.astype(float)
    return points[torch.from_numpy(np.array(chosen)).to(points.device)]
