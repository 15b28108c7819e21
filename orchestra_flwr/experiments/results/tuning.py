"""Hyperparameters chosen without labels (section 5 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestra_flwr.experiments.results.comparison import Result

WITH_LABELS = {"linear": "linear probe", "knn": "kNN"}  # what the score is held against


@dataclass(frozen=True)
class Selection:
    """What the score without labels selects, and how good the selection is.

    Attributes:
        best: the row with the highest score.
        runner_up: the one with the next highest; None where there is one row only.
        with_labels: by measure of `WITH_LABELS`, as far as rows have it, the row with the highest.
        considered: number of rows that were compared.
    """

    best: Result
    runner_up: Result | None
    with_labels: Mapping[str, Result]
    considered: int

    def why(self, axes: tuple[str, ...]) -> str:
        """The selection and its reasons, in words."""
        score = self.best.ours["unsupervised"].mean
        text = f"{self.best.label(axes)}: its score, {score:.3f}, is the highest of "
        text += f"{self.considered}"
        if self.runner_up:
            second = self.runner_up.ours["unsupervised"].mean
            text += f" (next: {self.runner_up.label(axes)}, {second:.3f})"
        return "; ".join([text, *(self._held(measure, axes) for measure in self.with_labels)])

    def _held(self, measure: str, axes: tuple[str, ...]) -> str:
        """The selection by a measure that needs labels."""
        name, highest = WITH_LABELS[measure], self.with_labels[measure]
        found, most = self.best.ours[measure].mean, highest.ours[measure].mean
        if found == most:
            return f"{name}, {found:.2f} %, is the highest too"
        return (
            f"{name} {found:.2f} %, where labels would have chosen "
            f"{highest.label(axes)} with {most:.2f} %"
        )


def select(rows: Sequence[Result]) -> Selection | None:
    """The row with the highest Align + 0.2 Unif; None if no row has a score.

    Equal scores go to the first row. What needs labels plays no part in it.
    """
    scored = [row for row in rows if "unsupervised" in row.ours]
    measures = [name for name in WITH_LABELS if all(name in row.ours for row in scored)]
    if not scored or not measures:
        return None
    ranked = sorted(scored, key=lambda row: -row.ours["unsupervised"].mean)
    highest = {name: max(ranked, key=lambda row: row.ours[name].mean) for name in measures}
    return Selection(ranked[0], ranked[1] if len(ranked) > 1 else None, highest, len(scored))
