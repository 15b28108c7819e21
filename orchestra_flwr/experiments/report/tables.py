"""The tables of a report."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestra_flwr.console.text import duration, percent, size
from orchestra_flwr.experiments.planning.measure_table import MEASURES
from orchestra_flwr.experiments.planning.plan import Plan
from orchestra_flwr.experiments.report.markdown import Table
from orchestra_flwr.experiments.results.comparison import Result
from orchestra_flwr.experiments.results.differences import what_differs
from orchestra_flwr.experiments.results.runs import Run
from orchestra_flwr.experiments.results.statistics import Sample

NOTHING = "\u2013"
WORSE = "\u25bc"  # beside a measure that training made worse
MAX_STARTS = 3  # rows before training; with more, the gains say it


def results_table(rows: Sequence[Result], plan: Plan) -> Table:
    """By measure: our value (mean, deviation over seeds, gain), the paper's, and the difference.

    The first rows are those of encoders before training, unless there are many. Our best value of a
    measure is highlighted if more than one row has the measure, unless it is worse than before
    training.
    """
    measures = plan.experiment.measures
    printed = {m for m in measures if any(m in row.paper for row in rows)}
    # Where results must not be compared, a difference means nothing.
    beside = ["paper", "difference"] if plan.settings.comparable else ["paper"]
    columns = [" / ".join(plan.experiment.show.row_axes)]
    for measure in measures:
        columns.append(MEASURES[measure].title)
        columns += beside if measure in printed else []
    columns.append("seeds")
    cells, strong = [], set()
    for label, before in _untrained(rows, plan.experiment.show.row_axes):
        line = [label]
        for measure in measures:
            line.append(str(before.get(measure, NOTHING)))
            line += [NOTHING] * len(beside) if measure in printed else []
        cells.append((*line, NOTHING))
    above = len(cells)
    for number, row in enumerate(rows, above):
        line = [row.label(plan.experiment.show.row_axes)]
        for measure in measures:
            if _is_best(row, rows, measure):
                strong.add((number, len(line)))
            line.append(_ours(row, measure))
            if measure in printed:
                difference = row.difference(measure)
                shown = NOTHING if difference is None else f"{difference:+.2f}"
                line += [str(row.paper.get(measure, NOTHING)), shown][: len(beside)]
        counts = {sample.count for sample in row.ours.values()}
        line.append(" to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else "0")
        cells.append(tuple(line))
    danger = {
        number
        for number, row in enumerate(rows, above)
        if any(run.summary.get("not_private") for run in row.runs)
    }
    return Table(tuple(columns), tuple(cells), frozenset(strong), frozenset(danger))


def lines_table(rows: Sequence[Result], plan: Plan) -> Table:
    """One of our measures: a row for every series, a column for every value on the axis."""
    show, (measure, *_) = plan.experiment.show, plan.experiment.measures
    assert show.x and show.series
    ticks = list(dict.fromkeys(row.values[show.x] for row in rows))
    cells: dict[str, dict[str, str]] = {}
    strong = set()
    for row in rows:
        line = cells.setdefault(row.values[show.series], {})
        tick = row.values[show.x]
        line[tick] = _ours(row, measure)
        beside = [other for other in rows if other.values[show.x] == tick]
        if _is_best(row, beside, measure):
            strong.add((list(cells).index(row.values[show.series]), 1 + ticks.index(tick)))
    counts = {len(row.runs) for row in rows}
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    columns = (f"{MEASURES[measure].title} by {show.x} ({seeds} seeds)", *ticks)
    lines = [(name, *(line.get(tick, NOTHING) for tick in ticks)) for name, line in cells.items()]
    return Table(columns, tuple(lines), frozenset(strong))


def runs_table(runs: Sequence[Run], folder: Path) -> Table:
    """One row for every run, for runs that belong to no experiment."""
    precision = any(run.measure("map") is not None for run in runs)
    differences = what_differs(runs)
    columns = (
        "run",
        *(("what differs",) * any(differences.values())),
        "method",
        "images",
        "clients",
        "seed",
        "rounds",
        "kNN",
        "linear",
        *(("mAP",) * precision),
        "time",
        "sent",
    )
    rows = []
    for run in runs:
        config, summary = run.config, run.summary
        done = run.metrics[-1]["round"] if run.metrics else summary.get("rounds", 0)
        rows.append(
            (
                run.folder.relative_to(folder).as_posix(),
                *((differences[run.folder],) * any(differences.values())),
                config.method.name,
                config.data.name,
                str(config.federation.clients),
                str(config.seed),
                f"{done}" if summary else f"{done} of {config.federation.rounds}, unfinished",
                *(_of_run(run, measure) for measure in ("knn", "linear")),
                *((_of_run(run, "map"),) * precision),
                NOTHING if run.seconds is None else duration(run.seconds),
                size(run.sent) if summary else NOTHING,
            )
        )
    danger = {n for n, run in enumerate(runs) if run.summary.get("not_private")}
    return Table(columns, tuple(rows), danger=frozenset(danger))


def provenance(runs: Sequence[Run]) -> Iterator[str]:
    """Seeds, hardware, versions, commit and cost of runs: a line for each, with all its values."""
    versions = [run.summary.get("versions") or {} for run in runs]
    seeds = sorted({run.config.seed for run in runs})
    yield f"Seeds: {', '.join(map(str, seeds)) or 'none'}"
    for title, keys in (
        ("Hardware", ("cpu", "cores", "platform")),
        ("Versions", ("orchestra_flwr", "python", "torch", "flwr", "numpy")),
        ("Commit", ("commit",)),
    ):
        values = dict.fromkeys(
            ", ".join(f"{key} {version[key]}" for key in keys if version.get(key) is not None)
            for version in versions
        )
        yield f"{title}: {'; '.join(filter(None, values)) or 'not known'}"
    trained = [run for run in runs if run.seconds is not None]
    if trained:
        seconds = sum(run.seconds or 0 for run in trained)
        sent = sum(run.sent for run in trained)
        devices = ", ".join(
            sorted({f"{r.config.engine.name} on {r.config.device}" for r in trained})
        )
        yield (
            f"Engine: {devices}; {duration(seconds)} in {len(trained)} runs, "
            f"{duration(seconds / len(trained))} each; {size(sent)} sent"
        )


def _untrained(
    rows: Sequence[Result], axes: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Sample]]]:
    """The encoders before training, each with a label; different rows may have different ones."""
    starts: list[tuple[dict[str, Sample], list[str]]] = []
    for row in rows:
        same = next((labels for before, labels in starts if before == row.before), None)
        if same is not None:
            same.append(row.label(axes))
        elif row.before:
            starts.append((row.before, [row.label(axes)]))
    for before, labels in starts if len(starts) <= MAX_STARTS else ():
        of = f" ({'; '.join(labels)})" if len(starts) > 1 else ""
        yield f"before training{of}", before


def _ours(row: Result, measure: str) -> str:
    """One of our values with its gain by training, marked if training made it worse."""
    gain = row.gain(measure)
    added = "" if gain is None else f" ({gain:+.1f})"
    mark = f" {WORSE}" if MEASURES[measure].more_is_better and row.is_worse(measure) else ""
    return f"{row.ours.get(measure, NOTHING)}{added}{mark}"


def _of_run(run: Run, measure: str) -> str:
    score, before = run.measure(measure), run.before(measure)
    if score is None:
        return NOTHING
    return percent(score) + (f" {WORSE}" if before is not None and score < before else "")


def _is_best(row: Result, rows: Sequence[Result], measure: str) -> bool:
    means = [other.ours[measure].mean for other in rows if measure in other.ours]
    if not MEASURES[measure].more_is_better or measure not in row.ours or len(means) < 2:
        return False
    if row.is_worse(measure):
        return False
    return row.ours[measure].mean == max(means) > min(means)
