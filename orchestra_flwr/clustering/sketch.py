"""Count sketches: short vectors with nearly the cosines of long ones."""

import numpy as np

BLOCK = 1 << 18  # values that are sketched at a time


def sketch(values: np.ndarray, width: int) -> np.ndarray:
    """A short vector that keeps cosines: a count sketch of unit length, or the values themselves.

    Each value is added, with a random sign, to one of `width` sums (Charikar et al., "Finding
    Frequent Items in Data Streams", 2002). The cosine of two sketches is that of the vectors with a
    deviation of at most sqrt(2 / width). A vector always has the same sketch: the seed is fixed.

    Args:
        values: (n,) float; up to `width` values are left as they are.
        width: of the sketch.

    Returns:
        (min(n, width),) float16 of length 1; all zeros for zeros.
    """
    short = values.astype(np.float64) if len(values) <= width else np.zeros(width)
    if len(values) > width:
        draws = np.random.default_rng(0)
        for start in range(0, len(values), BLOCK):
            part = values[start : start + BLOCK].astype(np.float64)
            sums = draws.integers(0, width, len(part))
            signs = 2.0 * draws.integers(0, 2, len(part)) - 1
            short += np.bincount(sums, weights=signs * part, minlength=width)
    length = np.linalg.norm(short)
    return (short / length if length > 0 else short).astype(np.float16)
