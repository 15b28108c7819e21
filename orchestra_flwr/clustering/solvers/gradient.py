"""Global clustering by gradient steps, as the published code does it; for comparison with it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from orchestra_flwr.clustering.sinkhorn_knopp import sinkhorn
from orchestra_flwr.clustering.solvers import Solver
from orchestra_flwr.clustering.spherical import in_canonical_order, unit_rows
from orchestra_flwr.config import Config

STEPS, LR, MOMENTUM, WEIGHT_DECAY = 500, 0.01, 0.9, 1e-4
TEMPERATURE = 0.1


class Gradient(Solver):
    """The published 500 steps of gradient descent."""

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Small gradient steps need no damping."""
        return {"clustering.damping": "with clustering.solver=gradient"}

    def solve(self, points: Tensor, previous: Tensor, generator: torch.Generator) -> Tensor:
        return gradient_clustering(points, previous, generator)


def gradient_clustering(
    local_centroids: Tensor, previous: Tensor, generator: torch.Generator, *, steps: int = STEPS
) -> Tensor:
    """Moves global centroids so that their softmax agrees with the equal-mass assignment.

    Each full-batch step of SGD lowers the mean negative cosine between every point's row of the
    Sinkhorn plan and its softmax over the centroids; centroids are normalised after each. The
    result does not depend on the order of the rows. The first round begins at random.

    Args:
        local_centroids: the `points` of :meth:`Solver.solve`, whose other arguments are the same.
        steps: of SGD.

    Raises:
        ValueError: no centroids, or centroids that are not finite.
    """
    points = in_canonical_order(unit_rows(local_centroids))
    centroids = previous.to(points)
    if not centroids.any():
        centroids = F.normalize(torch.randn(previous.shape, generator=generator).to(points), dim=1)
    running = torch.zeros_like(centroids)
    for _ in range(steps):
        centroids = centroids.detach().requires_grad_()
        cosines = points @ centroids.T
        with torch.no_grad():
            # The published code stops at the same tolerance, one percent of the columns' mass.
            wanted = sinkhorn(cosines, tolerance=1e-2)[0].to(points)
        agreement = F.cosine_similarity(wanted, F.softmax(cosines / TEMPERATURE, dim=1), dim=1)
        (gradient,) = torch.autograd.grad(-agreement.mean(), centroids)
        with torch.no_grad():
            running = MOMENTUM * running + gradient + WEIGHT_DECAY * centroids
            centroids = F.normalize(centroids - LR * running, dim=1)
    return centroids.detach()
