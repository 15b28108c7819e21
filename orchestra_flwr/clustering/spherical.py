"""Clusters of equal mass on the unit sphere: the core that local and global clustering share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from orchestra_flwr.clustering.sinkhorn import sinkhorn

BETWEEN = 10  # Sinkhorn iterations between two moves of the centroids


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


def equal_mass_clustering(
    points: Tensor, centroids: Tensor, *, iterations: int = 30, tolerance: float = 1e-3
) -> tuple[Tensor, Tensor]:
    """Alternates Sinkhorn assignments and their closed-form optimal centroids.

    Each step can only raise the regularised transport objective: the plan is optimal for the
    centroids, and the normalised plan-weighted mean is the optimal centroid for the plan.

    Args:
        points: (n, d) unit vectors.
        centroids: (k, d) unit vectors to begin with.
        iterations: at most so many alternations.
        tolerance: stops once no centroid moves farther.

    Returns:
        centroids (k, d), unit vectors, and log plan (n, k) of the points onto them.
    """
    plan, column = sinkhorn(points @ centroids.T, iterations=BETWEEN)
    for _ in range(iterations):
        moved = F.normalize(plan.exp().T @ points, dim=1)
        # Points that cancel each other out have no mean direction: the centroid stays.
        moved = torch.where(moved.norm(dim=1, keepdim=True) > 0.5, moved, centroids)
        shift = (moved - centroids).norm(dim=1).max()
        centroids = moved
        # The last potentials are nearly right for centroids that moved a little.
        plan, column = sinkhorn(points @ centroids.T, iterations=BETWEEN, column=column)
        if shift < tolerance:
            break
    return centroids, sinkhorn(points @ centroids.T, column=column)[0]


def spread_out(points: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """k of n >= k unit vectors by k-means++ seeding (Arthur and Vassilvitskii, 2007).

    Duplicates are chosen only when no distinct point is left. Returns (k, d).
    """
    first = int(torch.randint(len(points), (1,), generator=generator))
    chosen = [first]
    taken = torch.zeros(len(points), dtype=torch.bool)
    distance = torch.full((len(points),), torch.inf)
    while len(chosen) < k:
        taken[chosen[-1]] = True
        # Rounding leaves about 1e-7 between duplicates; it must not count as distance.
        to_last = (1 - points @ points[chosen[-1]]).cpu().clamp(min=0)
        distance = torch.minimum(distance, torch.where(to_last < 1e-6, 0.0, to_last))
        weights = torch.where(taken, 0.0, distance)
        if weights.sum() <= 0:
            weights = (~taken).float()
        chosen.append(int(torch.multinomial(weights, 1, generator=generator)))
    return points[chosen]
