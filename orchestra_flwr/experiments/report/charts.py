"""Charts of many runs: measures along an axis, curves over the rounds, scatter, embeddings."""

import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from orchestra_flwr.console.text import lookup
from orchestra_flwr.experiments.results.embedding import Embedding
from orchestra_flwr.experiments.results.runs import Run, curve_title
from orchestra_flwr.experiments.results.statistics import Sample, mean_curve
from orchestra_flwr.files import replacing
from orchestra_flwr.reporting.plots import (
    COLOURS,
    INK,
    QUIET,
    new_figure,
    style_axes,
    without_glyph_warnings,
)

PALETTE = (*COLOURS, INK, "#a0785a", "#7a5fd0", "#8c8c8c", "#b5bd00", "#d62728")
MARKERS = "osD^vPX*<>ph"
# Inches that a legend needs for an entry's mark, for a letter, and for a line.
LEGEND_MARK, LEGEND_LETTER, LEGEND_LINE = 0.75, 0.078, 0.21
Line = Sequence[tuple[str, Sample]]
Pairs = Sequence[tuple[float, float]]


def save(figure: Figure, file: Path) -> None:
    """Writes `<file>.png` and `<file>.svg`, the same bytes for the same figure."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # By default matplotlib dates an SVG and names its parts at random.
    reproducible = rc_context({"svg.hashsalt": file.name})
    with without_glyph_warnings():
        with reproducible, replacing(file.with_name(f"{file.name}.svg")) as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None})
        with replacing(file.with_name(f"{file.name}.png")) as temporary:
            figure.savefig(temporary, format="png")


def draw_lines(
    panels: Mapping[str, Mapping[str, Line]], ticks: Sequence[str], x_title: str, y_title: str
) -> Figure:
    """A measure along an axis: a panel for every section, a line for every series.

    Args:
        panels: by section and series, the points, which may be missing for some of the ticks.
        ticks: the values of the axis, in its order.
        x_title, y_title: titles of every panel's axes.
    """
    figure = _side_by_side(len(panels))
    for panel, (title, series) in zip(figure.axes, panels.items(), strict=True):
        for number, (name, line) in enumerate(series.items()):
            panel.errorbar(
                [ticks.index(x) for x, _ in line],
                [sample.mean for _, sample in line],
                yerr=[sample.deviation or 0.0 for _, sample in line],
                label=name,
                capsize=3,
                **_look(number),
            )
        panel.set_xticks(range(len(ticks)), ticks)
        panel.set_xlim(-0.35, len(ticks) - 0.65)
        _finish(panel, title, x_title, y_title)
    _legend(figure)
    return figure


def draw_rounds(panels: Mapping[str, Mapping[str, Sequence[Run]]]) -> Figure:
    """Curves over the rounds: a panel for every section, a mean curve for every series."""
    figure = _side_by_side(len(panels))
    for panel, (title, series) in zip(figure.axes, panels.items(), strict=True):
        score = curve_title(itertools.chain.from_iterable(series.values()))
        for number, (name, runs) in enumerate(series.items()):
            _curve(panel, [by_round(run, _score) for run in runs], name, number)
        panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        _finish(panel, title, "round", f"{score}, %")
    _legend(figure)
    return figure


def draw_progress(series: Mapping[str, Sequence[Run]]) -> Figure:
    """Loss over rounds, and kNN accuracy, or mAP, over rounds, gigabytes and minutes."""
    score = f"{curve_title(itertools.chain.from_iterable(series.values()))}, %"
    figure = new_figure(10.5, 6.4)
    loss, rounds, traffic, time = figure.subplots(2, 2).flat
    for number, (name, runs) in enumerate(series.items()):
        _curve(loss, [by_round(run, _loss) for run in runs], name, number)
        _curve(rounds, [by_round(run, _score) for run in runs], name, number)
        for run in runs[:1]:  # gigabytes and minutes differ between seeds: only the first run's
            _plot(traffic, _by_cost(run, _gigabytes), name, number)
            _plot(time, _by_cost(run, _minutes), name, number)
    for panel in (loss, rounds):
        panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    _finish(loss, "loss", "round", "")
    _finish(rounds, score, "round", "")
    _finish(traffic, score, "gigabytes up and down, all clients", "")
    _finish(time, score, "minutes of rounds", "")
    _legend(figure)
    return figure


def draw_scatter(panels: Mapping[str, Mapping[str, Pairs]], y_title: str) -> Figure:
    """The score without labels against a measure that needs them: a dot for every run."""
    figure = _side_by_side(len(panels), 4.4)
    for panel, (title, series) in zip(figure.axes, panels.items(), strict=True):
        for number, (name, pairs) in enumerate(series.items()):
            x, y = zip(*pairs, strict=True)
            look = _look(number)
            panel.scatter(
                x, y, label=_in_legend(name), color=look["color"], marker=str(look["marker"]),
                s=36, alpha=0.85,
            )  # fmt: skip
        _finish(panel, title, "score (align + 0.2 unif), without labels", y_title)
    _legend(figure)
    return figure


def draw_embeddings(embeddings: Mapping[str, Embedding]) -> Figure:
    """Points in the plane, coloured by class: a panel for every encoder."""
    columns = min(3, len(embeddings))
    rows = -(-len(embeddings) // columns)
    figure = new_figure(3.5 * columns, 3.5 * rows + 0.4)
    panels = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for panel, (title, (points, labels, classes)) in zip(panels, embeddings.items(), strict=False):
        for label, name in enumerate(classes):
            chosen = points[labels == label]
            colour = PALETTE[label % len(PALETTE)]
            panel.scatter(
                *chosen.T, s=5, color=colour, alpha=0.75, linewidths=0, label=_in_legend(name)
            )
        panel.set_title(title, loc="left", color=INK, fontsize=11)
        panel.set(xticks=[], yticks=[])
        for spine in panel.spines.values():
            spine.set_color("#d8d8d8")
    for panel in panels[len(embeddings) :]:
        panel.set_axis_off()
    _legend(figure, markerscale=3)
    return figure


def _side_by_side(count: int, height: float = 4.2) -> Figure:
    """A figure with `count` panels in a row; the height is in inches."""
    figure = new_figure(max(6.0, 5.2 * count), height)
    figure.subplots(1, count)
    return figure


def _look(number: int) -> dict[str, Any]:
    return {
        "color": PALETTE[number % len(PALETTE)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 5,
        "linewidth": 1.7,
    }


def _curve(
    panel: Axes, curves: Sequence[Sequence[tuple[float, float]]], name: str, number: int
) -> None:
    """Draws the mean of curves over the rounds that all have, with their deviation as a band."""
    samples = mean_curve(curves)
    _plot(panel, [(x, sample.mean) for x, sample in samples.items()], name, number)
    band = [(x, s.mean, s.deviation) for x, s in samples.items() if s.deviation is not None]
    if band:
        rounds, mean, deviation = np.array(band).T
        colour = PALETTE[number % len(PALETTE)]
        panel.fill_between(
            rounds, mean - deviation, mean + deviation, color=colour, alpha=0.15, lw=0
        )


def _plot(panel: Axes, points: Sequence[tuple[float, float]], name: str, number: int) -> None:
    if points:
        look = _look(number) | ({"marker": ""} if len(points) > 25 else {})
        panel.plot(*zip(*points, strict=True), label=_in_legend(name), **look)


Record = Mapping[str, object]


def by_round(run: Run, value: Callable[[Run, Record], float | None]) -> list[tuple[float, float]]:
    """A run's rounds, each with a value of its record, where there is one."""
    points = ((record["round"], value(run, record)) for record in run.metrics)
    return [(x, y) for x, y in points if y is not None]


def _by_cost(run: Run, cost: Callable[[Record], float]) -> list[tuple[float, float]]:
    """kNN accuracy, or mAP, over the cost of all rounds so far."""
    spent, points = 0.0, []
    for record in run.metrics:
        spent += cost(record)
        y = _score(run, record)
        if y is not None:
            points.append((spent, y))
    return points


def _score(run: Run, record: Record) -> float | None:
    value = run.score(record)
    return None if value is None else 100 * value


def _loss(run: Run, record: Record) -> float | None:
    return lookup(record, "loss", "total")


def _gigabytes(record: Record) -> float:
    return ((lookup(record, "bytes_up") or 0) + (lookup(record, "bytes_down") or 0)) / 1e9


def _minutes(record: Record) -> float:
    return (lookup(record, "seconds") or 0) / 60


def _finish(panel: Axes, title: str, x_title: str, y_title: str) -> None:
    panel.set_title(title)
    style_axes(panel)
    panel.set_xlabel(x_title, color=INK)
    panel.set_ylabel(y_title, color=INK)
    if not panel.has_data():
        panel.text(0.5, 0.5, "not measured", transform=panel.transAxes, color=QUIET, ha="center")


def _in_legend(name: str) -> str:
    """The label of a class or run: matplotlib leaves out those that begin with `_`."""
    return f" {name}" if name.startswith("_") else name


def _legend(figure: Figure, **options: Any) -> None:
    """Adds one legend for all panels below them; the figure grows as needed."""
    entries = {
        label: handle
        for panel in figure.axes
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    if entries:
        width, height = figure.get_size_inches()
        most = int((width - LEGEND_MARK) / LEGEND_LETTER)  # letters in a line of the figure's width
        labels = [textwrap.fill(label, most) for label in entries]
        longest = max(len(line) for label in labels for line in label.splitlines())
        columns = int(width / (LEGEND_MARK + LEGEND_LETTER * longest))
        columns = max(1, min(len(entries), columns))
        lines = sum(label.count("\n") + 1 for label in labels)
        figure.set_size_inches(width, height + LEGEND_LINE * max(0, lines / columns - 2))
        legend = figure.legend(
            entries.values(),
            labels,
            loc="outside lower center",
            ncols=columns,
            fontsize=9,
            labelcolor=INK,
            frameon=False,
            **options,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)  # prints a $ as it is
