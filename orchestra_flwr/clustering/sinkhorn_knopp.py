"""Sinkhorn-Knopp: soft assignments of points to clusters of equal mass."""

from torch import Tensor

SHARPNESS = 25.0  # inverse of the entropic regularisation, as in the published code
CHECK_EVERY = 5  # iterations; a check of the columns costs as much as one


def sinkhorn(
    cosines: Tensor, *, iterations: int = 100, tolerance: float = 1e-3, column: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Entropic optimal transport of n points onto k clusters, each of mass 1/k.

    Maximises <P, cosines> + H(P) / SHARPNESS over plans P whose rows sum to 1/n and whose columns
    sum to 1/k (Cuturi, 2013; Genevay et al., 2019), by scaling rows and columns of the kernel in
    turn. The kernel of cosines spans a factor of exp(50), far within float64: no logarithms needed.

    Args:
        cosines: (n, k) similarities from -1 to 1.
        iterations: maximal number of row-and-column updates.
        tolerance: stops once every column's mass is within this fraction of 1/k.
        column: (k,) factors to begin with, those of similar cosines; ones if None.

    Returns:
        (n, k) plan in float64, all positive, whose rows sum to 1/n exactly and whose columns sum to
        1/k within the tolerance if the iterations sufficed; and the (k,) column factors.
    """
    n, k = cosines.shape
    kernel = (cosines.double() - 1).mul_(SHARPNESS).exp_()
    column = kernel.new_ones(k) if column is None else column
    for step in range(1, iterations + 1):
        row = (kernel @ column).mul_(n).reciprocal_()
        mass = row @ kernel  # of columns, before their scaling
        if step % CHECK_EVERY == 0 and (mass * column * k - 1).abs().max() < tolerance:
            break
        column = mass.mul_(k).reciprocal_()
    row = (kernel @ column).mul_(n).reciprocal_()
    return kernel.mul_(row[:, None]).mul_(column), column
