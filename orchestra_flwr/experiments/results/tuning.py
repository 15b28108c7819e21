"""Hyperparameters chosen without labels (section 5 of the paper)."""

from collections.abc import Sequence

from orchestra_flwr.experiments.results.comparison import Result

WITH_LABELS = {"linear": "linear probe", "knn": "kNN"}  # what the score is compared with


def selection(rows: Sequence[Result], axes: tuple[str, ...]) -> str | None:
    """A sentence on the row with the highest Align + 0.2 Unif, and on the choice by labels.

    Rows without a score are left out, the first of equal scores wins, and measures that need labels
    play no part. None if no row has a score, or no measure that needs labels covers all that do.
    """
    scored = [row for row in rows if "unsupervised" in row.ours]
    measures = [name for name in WITH_LABELS if all(name in row.ours for row in scored)]
    if not scored or not measures:
        return None
    best, *others = sorted(scored, key=lambda row: -_mean(row, "unsupervised"))
    text = f"{best.label(axes)}: its score, {_mean(best, 'unsupervised'):.3f}, is the highest of "
    text += str(len(scored))
    if others:
        text += f" (next: {others[0].label(axes)}, {_mean(others[0], 'unsupervised'):.3f})"
    for measure in measures:
        name, mean = WITH_LABELS[measure], _mean(best, measure)
        highest = max([best, *others], key=lambda row: _mean(row, measure))
        if mean == (most := _mean(highest, measure)):
            text += f"; {name}, {mean:.2f} %, is the highest too"
        else:
            chosen = f"labels would have chosen {highest.label(axes)} with {most:.2f} %"
            text += f"; {name} {mean:.2f} %, where {chosen}"
    return text


def _mean(row: Result, measure: str) -> float:
    return row.ours[measure].mean
