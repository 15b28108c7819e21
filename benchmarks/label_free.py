"""Which scores without labels order encoders as those with labels do.

    python benchmarks/label_free.py outputs/experiments/*/

Of runs with `evaluation.unsupervised=true`: Spearman's rank correlation of each score with the
linear probe and with kNN, over the encoders after the last round of all runs, over those of one
method (mean of the methods), and over the evaluated rounds of one run (mean of the runs), with the
encoder before training and without. Last, how many points of the probe the round that a score
chooses is below the best round of the run.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from scipy.stats import spearmanr

from orchestra_flwr.console.text import flat
from orchestra_flwr.files import read_json
from orchestra_flwr.reporting import RunFolder

SCORES = ("effective_rank", "lidar", "score", "alignment", "uniformity", "feature_std")
CLIENTS = "clients' "
LABELLED = {"linear": "probe", "knn": "kNN"}
MIN_POINTS = 3  # of a correlation


@dataclass(frozen=True)
class Point:
    """The scores of one encoder of a run, after one round."""

    run: str
    method: str
    round: int
    scores: Mapping[str, float]


def points_of(run: Path) -> Iterator[Point]:
    """The evaluated rounds of a run, of the backbone that is saved."""
    summary = read_json(run / "summary.json")
    for record in RunFolder(run).read_metrics():
        of_backbone = (record.get("scores") or {}).get(summary["backbone"]) or {}
        of_clients = record.get("unsupervised") or {}
        scores = {**of_backbone, **{CLIENTS + name: value for name, value in of_clients.items()}}
        if "linear" in of_backbone:
            numbers = {k: v for k, v in flat(scores).items() if isinstance(v, float)}
            yield Point(run.name, run.name.partition("-")[0], record["round"], numbers)


def correlation(points: Iterable[Point], score: str, labelled: str) -> float | None:
    """Spearman's; None where there are too few encoders, or nothing differs."""
    pairs = [(p.scores[score], p.scores[labelled]) for p in points if score in p.scores]
    if len(pairs) < MIN_POINTS or any(len(set(values)) < 2 for values in zip(*pairs, strict=True)):
        return None
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def mean_correlation(
    points: Iterable[Point], by: str, score: str, labelled: str
) -> tuple[float, int] | None:
    """The mean of the correlations within groups of equal `by`, and of how many groups."""
    groups = defaultdict(list)
    for point in points:
        groups[getattr(point, by)].append(point)
    correlations = [correlation(group, score, labelled) for group in groups.values()]
    known = [value for value in correlations if value is not None]
    return (mean(known), len(known)) if known else None


def regret(points: Iterable[Point], score: str) -> float | None:
    """Points of the probe that the chosen encoders of runs lack to the best ones, on average."""
    groups = defaultdict(list)
    for point in points:
        if score in point.scores:
            groups[point.run].append(point.scores)
    lacking = [
        100 * (max(s["linear"] for s in group) - max(group, key=lambda s: s[score])["linear"])
        for group in groups.values()
    ]
    return mean(lacking) if lacking else None


def table(points: list[Point]) -> Iterator[str]:
    """Markdown rows: a score, its correlations, what choosing by it costs."""
    last = {point.run: point for point in points}  # rounds ascend
    trained = [point for point in points if point.round > 0]
    yield "| score | labels | last encoders | of a method | rounds of a run | and round 0 | lacks |"
    yield "|---|---|---|---|---|---|---|"
    for score in (*SCORES, *(CLIENTS + name for name in SCORES)):
        if not any(score in point.scores for point in points):
            continue
        for key, title in LABELLED.items():
            over_all = correlation(last.values(), score, key)
            cells = [
                (over_all, len(last)) if over_all is not None else None,
                mean_correlation(last.values(), "method", score, key),
                mean_correlation(trained, "run", score, key),
                mean_correlation(points, "run", score, key),
            ]
            lacks = regret(trained, score) if key == "linear" else None
            shown = ["-" if cell is None else f"{cell[0]:.2f} ({cell[1]})" for cell in cells]
            shown.append("-" if lacks is None else f"{lacks:.1f}")
            yield f"| {score} | {title} | {' | '.join(shown)} |"


def main(arguments: list[str]) -> None:
    """Reads the runs that are complete."""
    runs = [Path(argument) for argument in arguments]
    complete = [run for run in runs if (run / "summary.json").is_file()]
    points: list[Any] = [point for run in complete for point in points_of(run)]
    if not points:
        sys.exit(__doc__)
    print(f"{len(complete)} runs, {len(points)} encoders")
    print("\n".join(table(points)))


if __name__ == "__main__":
    main(sys.argv[1:])
