"""Means and deviations over seeds, and the correlation of two measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """A mean over runs.

    Attributes:
        mean: of the runs.
        deviation: the sample's standard deviation (divided by n - 1); None for one run.
        count: of the runs.
    """

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample | None:
        """The sample of some values; None if there are none."""
        if not values:
            return None
        count, mean = len(values), math.fsum(values) / len(values)
        if count == 1:
            return cls(mean, None, 1)
        squares = math.fsum((value - mean) ** 2 for value in values)
        return cls(mean, math.sqrt(squares / (count - 1)), count)

    def __str__(self) -> str:
        """As in a table: "71.58 ± 0.53", or the mean alone."""
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's correlation; None for fewer than three pairs or where one side does not vary."""
    if len(pairs) < 3:
        return None
    x, y = zip(*pairs, strict=True)
    a, b = ([value - math.fsum(side) / len(side) for value in side] for side in (x, y))
    scale = math.sqrt(math.fsum(v * v for v in a) * math.fsum(v * v for v in b))
    return math.fsum(p * q for p, q in zip(a, b, strict=True)) / scale if scale > 0 else None
