"""Sinkhorn-Knopp in log space: soft assignments of points to clusters of equal mass."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinkhorn(
    scores: Tensor,
    *,
    sharpness: float = 25.0,
    iterations: int = 100,
    tolerance: float = 1e-3,
    column: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Entropic optimal transport of n points onto k clusters, each of mass 1/k.

    Maximises <P, scores> + H(P) / sharpness over plans P whose rows sum to 1/n and whose columns
    sum to 1/k (Cuturi, 2013; Genevay et al., 2019). Logarithms throughout, so that float32 holds
    any sharpness.

    Args:
        scores: (n, k) similarities, finite.
        sharpness: inverse of the entropic regularisation; 25 in the published code.
        iterations: at most so many row-and-column updates.
        tolerance: stops once every column's mass is within this fraction of 1/k.
        column: (k,) potentials to begin with, those of similar scores; zeros if None.

    Returns:
        (n, k) logarithm of the plan, whose rows sum to 1/n exactly and whose columns sum to 1/k
        within the tolerance if the iterations sufficed; and the (k,) column potentials.
    """
    n, k = scores.shape
    log_kernel = scores * sharpness
    column = scores.new_zeros(k) if column is None else column
    for _ in range(iterations):
        row = -torch.logsumexp(log_kernel + column, dim=1) - math.log(n)
        mass = torch.logsumexp(log_kernel + row[:, None], dim=0)  # of columns, before their scaling
        error = torch.expm1(mass + column + math.log(k)).abs().max()
        if error < tolerance:
            break
        column = -mass - math.log(k)
    row = -torch.logsumexp(log_kernel + column, dim=1) - math.log(n)
    return log_kernel + row[:, None] + column, column
