"""Means and deviations over seeds, and the correlation of two measures."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """A mean over runs."""

    mean: float  # of the runs
    deviation: float | None  # the sample's standard deviation (divided by n - 1); None for one run
    count: int  # of the runs

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample | None:
        """The sample of some values; None if there are none."""
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, len(values))

    def __str__(self) -> str:
        """As in a table: "71.58 ± 0.53", or the mean alone."""
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


def mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> dict[float, Sample]:
    """The sample of curves, given as points, at each place that all of them have, in order."""
    values: dict[float, list[float]] = {}
    for x, y in itertools.chain.from_iterable(curves):
        values.setdefault(x, []).append(y)
    samples = {x: Sample.of(ys) for x, ys in sorted(values.items()) if len(ys) == len(curves)}
    return {x: sample for x, sample in samples.items() if sample}


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's correlation; None for fewer than three pairs or where one side does not vary."""
    if len(pairs) < 3:
        return None
    try:
        return statistics.correlation(*zip(*pairs, strict=True))
    except statistics.StatisticsError:  # a side is constant
        return None
