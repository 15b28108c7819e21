"""Presentations of the kinds of experiments: figures, with text and tables about them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.experiments.planning.measure_table import MEASURES
from orchestra_flwr.experiments.report.charts import (
    by_round,
    draw_embeddings,
    draw_lines,
    draw_progress,
    draw_rounds,
    draw_scatter,
    save,
)
from orchestra_flwr.experiments.report.markdown import (
    FIGURES,
    Table,
    folded,
    heading,
    items,
    picture,
    warning,
)
from orchestra_flwr.experiments.report.tables import NOTHING
from orchestra_flwr.experiments.results.comparison import Result, Results
from orchestra_flwr.experiments.results.differences import by_difference
from orchestra_flwr.experiments.results.embedding import embed
from orchestra_flwr.experiments.results.paper import paper_value
from orchestra_flwr.experiments.results.runs import Run, curve_title
from orchestra_flwr.experiments.results.statistics import Sample, correlation, mean_curve
from orchestra_flwr.experiments.results.tuning import WITH_LABELS, selection

Presenter = Callable[[Results, Path], Iterator[str]]  # yields parts of the report, in Markdown
STEPS = 20  # accuracies for which rounds are counted: 5 %, 10 %, ...


def show_lines(results: Results, file: Path) -> Iterator[str]:
    """The measures over an axis, one figure for each."""
    show = results.plan.experiment.show
    assert show.x and show.series
    ticks = list(dict.fromkeys(row.values[show.x] for row in results.rows))
    for number, measure in enumerate(results.plan.experiment.measures):
        panels: dict[str, dict[str, list[tuple[str, Sample]]]] = {}
        for title, rows in results.sections((show.x, show.series)).items():
            for row in rows:
                if measure in row.ours:
                    lines = panels.setdefault(title, {})
                    point = (row.values[show.x], row.ours[measure])
                    lines.setdefault(row.values[show.series], []).append(point)
        if panels:
            title = MEASURES[measure].title
            target = file.with_name(f"{file.name}-{measure}") if number else file
            save(draw_lines(panels, ticks, show.x_title or show.x, title), target)
            yield picture(
                target, f"{_title(results)}: {title}; bars are deviations over the seeds."
            )


def show_rounds(results: Results, file: Path) -> Iterator[str]:
    """kNN accuracy, or mAP, over the rounds, and the rounds until it reached certain values."""
    series = results.plan.experiment.show.series
    assert series
    panels = {
        title: {row.values[series]: row.runs for row in rows if row.runs}
        for title, rows in results.sections((series,)).items()
    }
    panels = {title: lines for title, lines in panels.items() if lines}
    if not panels:
        return
    save(draw_rounds(panels), file)
    score = curve_title(results.runs)
    yield picture(file, f"{_title(results)}: {score}; bands are deviations over the seeds.")
    for title, lines in panels.items():
        table = rounds_to_accuracy(lines)
        if table.rows and len(table.columns) > 1:
            beside = f" ({title})" if title else ""
            yield heading(3, f"Rounds until {score}, mean over the seeds{beside}")
            yield table.markdown()


def rounds_to_accuracy(lines: Mapping[str, Sequence[Run]]) -> Table:
    """The rounds in which the mean accuracy of a line first reached 5 %, 10 %, ..."""
    curves: dict[str, dict[float, float]] = {}
    for name, runs in lines.items():
        if mean := mean_curve([by_round(run, Run.score) for run in runs]):
            curves[name] = {number: sample.mean for number, sample in mean.items()}
    if not curves:
        return Table(("",), ())
    first = min(min(curve.values()) for curve in curves.values())
    last = max(max(curve.values()) for curve in curves.values())
    levels = [n / STEPS for n in range(1, STEPS) if first < n / STEPS <= last]
    rows = []
    for name, curve in curves.items():
        reached = [
            next((str(number) for number, score in curve.items() if score >= level), NOTHING)
            for level in levels
        ]
        rows.append((name, *reached))
    return Table(("", *(f"{100 * level:.0f} %" for level in levels)), tuple(rows))


def show_embedding(results: Results, file: Path) -> Iterator[str]:
    """t-SNE of the test images, for the first run of every row."""
    shown, missing = {}, []
    for row in results.rows:
        label = row.label(results.plan.experiment.show.row_axes)
        for run in row.runs[:1]:
            try:
                shown[label] = embed(run)
            except FileNotFoundError as error:
                missing.append(f"{label}: {Path(str(error).partition(':')[0]).name} is missing")
            except (ConfigError, ValueError) as error:
                missing.append(f"{label}: {error}")
    if shown:
        save(draw_embeddings(shown), file)
        yield picture(file, f"{_title(results)}: t-SNE of test images, coloured by class.")
    if missing:
        yield warning("Without a figure:")
        yield items(missing)


def show_tuning(results: Results, file: Path) -> Iterator[str]:
    """What the score without labels selects, and how it correlates with probe and kNN accuracy."""
    show = results.plan.experiment.show
    assert show.series
    panels: dict[str, dict[str, dict[str, list[tuple[float, float]]]]] = {}
    reasons, correlations = [], []
    for title, rows in results.sections(show.row_axes).items():
        by_series: dict[str, list[Result]] = {}
        for row in rows:
            by_series.setdefault(row.values[show.series], []).append(row)
        for name, members in by_series.items():
            pairs = {measure: _pairs(members, measure) for measure in WITH_LABELS}
            if not any(pairs.values()):
                continue
            for measure, points in pairs.items():
                if points:
                    panels.setdefault(measure, {}).setdefault(title, {})[name] = points
            beside = f"{title}, " if title else ""
            if reason := selection(members, show.row_axes):
                reasons.append(f"{beside}{reason}.")
            by_measure = {measure: correlation(points) for measure, points in pairs.items()}
            correlations.append((f"{beside}{name}", by_measure))
    if not panels:
        yield warning("No run has a score without labels yet.")
        return
    yield heading(3, "Selected without labels")
    yield items(reasons)
    for measure, drawn in panels.items():
        target = file if measure == "knn" else file.with_name(f"{file.name}-{measure}")
        what = f"{WITH_LABELS[measure]} accuracy"
        save(draw_scatter(drawn, f"{what}, %"), target)
        yield picture(target, f"{_title(results)}: the score and {what} of every run.")
    yield _correlations(correlations).markdown()


def show_progress(results: Results, file: Path) -> Iterator[str]:
    """Loss and accuracy of all rows over rounds, traffic and time: a figure for every section."""
    series = results.plan.experiment.show.series or results.plan.experiment.show.row_axes[0]
    blocks: list[str] = []
    for number, (title, rows) in enumerate(results.sections((series,)).items()):
        lines = {row.values[series]: row.runs for row in rows if any(r.metrics for r in row.runs)}
        if lines:
            target = file.with_name(f"{file.name}-course-{number}")
            save(draw_progress(lines), target)
            blocks.append(picture(target, title or _title(results)))
    if blocks:
        yield folded("Loss and accuracy over rounds, traffic and time", *blocks)


def show_runs(runs: Sequence[Run], folder: Path) -> Iterator[str]:
    """As :func:`show_progress`, for runs of no experiment, named by what differs."""
    lines = by_difference([run for run in runs if run.metrics], folder)
    file = folder / FIGURES / "runs"
    if lines:
        save(draw_progress(lines), file)
        seeds = max(len(same) for same in lines.values())
        bands = "; bands are deviations over the seeds" if seeds > 1 else ""
        yield picture(file, f"Loss and accuracy over rounds, traffic and time{bands}.")


PRESENTERS: Mapping[str, Presenter] = {  # a table alone needs none
    "lines": show_lines,
    "rounds": show_rounds,
    "embedding": show_embedding,
    "tuning": show_tuning,
}


def _title(results: Results) -> str:
    return f"{results.plan.experiment.title} ({results.plan.settings.title})"


def _pairs(rows: Sequence[Result], measure: str) -> list[tuple[float, float]]:
    """Score and an accuracy in percent of every run that has both."""
    pairs = []
    for row in rows:
        for run in row.runs:
            score, accuracy = run.measure("unsupervised"), run.measure(measure)
            if score is not None and accuracy is not None:
                pairs.append((score, 100 * accuracy))
    return pairs


def _correlations(correlations: Sequence[tuple[str, Mapping[str, float | None]]]) -> Table:
    """Correlations of the score with measures that need labels; the paper prints that with kNN."""
    rows = [
        (name, *(NOTHING if by[m] is None else f"{by[m]:z.2f}" for m in WITH_LABELS), NOTHING)
        for name, by in correlations
    ]
    means = []
    for measure in WITH_LABELS:
        values = [r for _, by in correlations if (r := by[measure]) is not None]
        means.append(f"{sum(values) / len(values):z.2f}" if values else NOTHING)
    printed = paper_value("tuning", {}, "correlation")
    rows.append(("mean", *means, NOTHING if printed is None else f"{printed.mean:.2f}"))
    columns = (*WITH_LABELS.values(), "kNN in the paper")
    return Table(("correlation of the score with", *columns), tuple(rows))
