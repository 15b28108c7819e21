"""Global clustering: all clients' local centroids to G global centroids."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from orchestra_flwr.clustering.spherical import equal_mass_clustering, spread_out, unit_rows


def global_clustering(local_centroids: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Clusters N local centroids into G global ones of equal mass.

    Line 8 of the paper's Algorithm 2, by alternating Sinkhorn plans with closed-form centroids
    in place of the published 500 gradient steps. The result does not depend on the order of the
    rows. With N < G the last G - N centroids are random directions: almost no feature is near
    them until a later round has more to say.

    Args:
        local_centroids: (N, d) from all clients of the cohort, N >= 1.
        clusters: the paper's G.
        generator: CPU generator that seeds the clusters.

    Returns:
        (clusters, d) unit vectors.

    Raises:
        ValueError: no centroids, or centroids that are not finite.
    """
    points = in_canonical_order(unit_rows(local_centroids))
    k = min(clusters, len(points))
    centroids = equal_mass_clustering(points, spread_out(points, k, generator))
    spare = torch.randn(clusters - k, points.shape[1], generator=generator).to(points)
    return torch.cat([centroids, F.normalize(spare, dim=1)])


def in_canonical_order(points: Tensor) -> Tensor:
    """The rows sorted by their bytes, so that what follows cannot depend on their order."""
    rows = np.ascontiguousarray(points.cpu().numpy())
    keys = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
    return points[torch.from_numpy(keys.argsort()).to(points.device)]
