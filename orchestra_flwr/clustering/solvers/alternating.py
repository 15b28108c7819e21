"""Global clustering: all clients' local centroids to G global centroids."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from orchestra_flwr.clustering.assignment import cheapest_assignment
from orchestra_flwr.clustering.solvers import Solver
from orchestra_flwr.clustering.spherical import (
    equal_mass_clustering,
    in_canonical_order,
    spread_out,
    unit_rows,
)


class Alternating(Solver):
    """Sinkhorn plans and closed-form centroids in turn, with `clustering.damping`."""

    def solve(self, points: Tensor, previous: Tensor, generator: torch.Generator) -> Tensor:
        return global_clustering(points, previous, generator, damping=self.damping)


def global_clustering(
    local_centroids: Tensor, previous: Tensor, generator: torch.Generator, *, damping: float = 0.5
) -> Tensor:
    """Moves G global centroids towards clusters of equal mass of N local centroids.

    Line 8 of the paper's Algorithm 2, by alternating Sinkhorn plans with closed-form centroids in
    place of the published 500 gradient steps. Like these it starts from the last round's centroids
    and moves only part of the way, so clusters stay consistent between rounds. The result does not
    depend on the order of the rows.

    With N < G each local centroid moves a global one of its own, the others stay. The first round
    is not damped, and with N < G adds random directions.

    Args:
        local_centroids: the `points` of :meth:`Solver.solve`, whose other arguments are the same.
        damping: weight of the last round's centroid beside the one that was found, below 1.

    Raises:
        ValueError: no centroids, or centroids that are not finite.
    """
    points = in_canonical_order(unit_rows(local_centroids))
    if not previous.any():
        return _first(points, len(previous), generator)
    previous = previous.to(points)
    moved = _moved(points, previous)
    # Opposite vectors have no direction between them.
    opposite = (moved * previous).sum(dim=1, keepdim=True) < -1 + 1e-3
    between = F.normalize(damping * previous + (1 - damping) * moved, dim=1)
    return torch.where(opposite, moved, between)


def _first(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    k = min(clusters, len(points))
    centroids = equal_mass_clustering(points, spread_out(points, k, generator))
    spare = torch.randn(clusters - k, points.shape[1], generator=generator).to(points)
    return torch.cat([centroids, F.normalize(spare, dim=1)])


def _moved(points: Tensor, previous: Tensor) -> Tensor:
    """(G, d) the centroids without damping."""
    if len(points) >= len(previous):
        return equal_mass_clustering(points, previous)
    distances = (1 - points @ previous.T).double().cpu().numpy()
    places = np.ones(len(previous), dtype=np.int64)
    moved = previous.clone()
    moved[torch.from_numpy(cheapest_assignment(distances, places)).to(points.device)] = points
    return moved
