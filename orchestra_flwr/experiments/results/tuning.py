"""Hyperparameters chosen without labels (section 5 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestra_flwr.experiments.results.comparison import Result


@dataclass(frozen=True)
class Selection:
    """What the score without labels selects, and how good the selection is.

    Attributes:
        best: the row with the highest score.
        runner_up: the one with the next highest; None where there is one row only.
        knn_best: the row with the highest kNN accuracy.
        considered: number of rows that were compared.
    """

    best: Result
    runner_up: Result | None
    knn_best: Result
    considered: int

    def why(self, axes: tuple[str, ...]) -> str:
        """The selection and its reasons, in words."""
        score = self.best.ours["unsupervised"].mean
        text = f"{self.best.label(axes)}: its score, {score:.3f}, is the highest of "
        text += f"{self.considered}"
        if self.runner_up:
            second = self.runner_up.ours["unsupervised"].mean
            text += f" (next: {self.runner_up.label(axes)}, {second:.3f})"
        knn, most = self.best.ours["knn"].mean, self.knn_best.ours["knn"].mean
        if self.knn_best is self.best:
            return f"{text}; kNN, {knn:.2f} %, is the highest too"
        return (
            f"{text}; kNN {knn:.2f} %, where labels would have chosen "
            f"{self.knn_best.label(axes)} with {most:.2f} %"
        )


def select(rows: Sequence[Result]) -> Selection | None:
    """The row with the highest Align + 0.2 Unif; None if no row has a score.

    Equal scores go to the first row. kNN accuracy plays no part in it.
    """
    scored = [row for row in rows if {"unsupervised", "knn"} <= row.ours.keys()]
    if not scored:
        return None
    ranked = sorted(scored, key=lambda row: -row.ours["unsupervised"].mean)
    best_knn = max(row.ours["knn"].mean for row in scored)
    knn_best = next(row for row in ranked if row.ours["knn"].mean == best_knn)
    return Selection(ranked[0], ranked[1] if len(ranked) > 1 else None, knn_best, len(scored))
