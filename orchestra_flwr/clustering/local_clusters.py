"""Local clustering: a client's latest target features in at most L clusters of equal size."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from orchestra_flwr.clustering.assignment import cheapest_assignment
from orchestra_flwr.clustering.sinkhorn_knopp import sinkhorn
from orchestra_flwr.clustering.spherical import equal_mass_clustering, spread_out, unit_rows


@dataclass(frozen=True)
class LocalClusters:
    """The result of local clustering."""

    centroids: Tensor  # (k, d) unit vectors, k = min(L, floor(n / k_min)); may be none
    sizes: Tensor  # (k,) members of each cluster, floor(n / k) or one more


def local_clustering(
    features: Tensor, clusters: int, generator: torch.Generator, *, k_min: int = 1
) -> LocalClusters:
    """Clusters n features into min(clusters, floor(n / k_min)) clusters of truly equal sizes.

    Line 18 of the paper's Algorithm 1. Sinkhorn-Knopp finds the clusters; its soft plan is rounded
    to the best assignment that gives every cluster at least floor(n / k) members, which the
    published code does not enforce. Thus no centroid stands for fewer than k_min images.

    Args:
        features: (n, d) target features, one row an image, n >= 1.
        clusters: the paper's L.
        generator: CPU generator that seeds the clusters.
        k_min: minimum number of images of a centroid, at least 1.

    Raises:
        ValueError: no features, or features that are not finite.
    """
    points = unit_rows(features)
    k = min(clusters, len(points) // k_min)
    if k == 0:
        return LocalClusters(points[:0], points.new_zeros(0, dtype=torch.int64))
    seeds = spread_out(points, k, generator)
    seeds = equal_mass_clustering(points, seeds)
    plan, _ = sinkhorn(points @ seeds.T)
    assignment = round_to_equal_sizes(plan.log())
    members = F.one_hot(assignment, k).to(points.dtype)
    means = F.normalize(members.T @ points, dim=1)
    centroids = torch.where(means.norm(dim=1, keepdim=True) > 0.5, means, seeds)
    return LocalClusters(centroids, members.sum(0).long())


def round_to_equal_sizes(log_plan: Tensor) -> Tensor:
    """The likeliest assignment in which cluster sizes differ by at most one.

    A transportation problem, solved exactly: every cluster has floor(n / k) places that must be
    taken and, where k does not divide n, one that may stay empty (a filler takes it then).

    Args:
        log_plan: (n, k) logarithm of a transport plan, n >= k.

    Returns:
        (n,) the cluster of each point.
    """
    n, k = log_plan.shape
    floor, rest = divmod(n, k)
    cost = -log_plan.double().cpu().numpy()
    places = np.full(k, floor)
    if rest:
        fillers = np.repeat([[np.inf, 0.0]], [k, k], axis=1).repeat(k - rest, axis=0)
        cost = np.vstack([np.hstack([cost, cost]), fillers])
        places = np.concatenate([places, np.ones(k, dtype=places.dtype)])
    groups = cheapest_assignment(cost, places)
    return torch.from_numpy(groups[:n] % k).to(log_plan.device)
