"""Figures of one run: curves over the rounds, and the split of the data over the clients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from orchestra_flwr.files import replacing
from orchestra_flwr.printable import printable
from orchestra_flwr.reporting.text import lookup

Metrics = Sequence[dict[str, Any]]

INK, QUIET = "#333333", "#8c8c8c"
# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
KNN, LINEAR = COLOURS[:2]
# Starts away from white, which is left for clients without the class.
COUNTS = LinearSegmentedColormap.from_list("counts", ["#d6e6f4", "#5aa2cf", "#0b559f", "#08244d"])
EMD = "EMD {:.2f} (mean L1 distance of class shares, 0 to 2)"


def plot_curves(metrics: Metrics, path: str | Path) -> None:
    """Draws loss, accuracy, traffic and time over the rounds as a PNG.

    Args:
        metrics: the records of `metrics.jsonl`. Scores may be in some rounds only or in none;
            those of round 0 are the untrained encoder's, drawn as dashed lines.
        path: the file to write.
    """
    figure = new_figure(10, 6.4)
    axes = figure.subplots(2, 2)
    _draw_losses(axes[0, 0], metrics)
    _draw_scores(axes[0, 1], metrics)
    _draw_traffic(axes[1, 0], metrics)
    _draw_seconds(axes[1, 1], metrics)
    for panel in axes.flat:
        _tidy(panel, metrics, from_zero=panel in axes[1])
    with replacing(Path(path)) as temporary:
        figure.savefig(temporary, format="png")


def plot_partition(
    counts: NDArray[np.integer[Any]],
    class_names: Sequence[str],
    path: str | Path,
    *,
    emd: float | None = None,
) -> None:
    """Draws the number of images by client and class as a PNG.

    Args:
        counts: (clients, classes) numbers of images.
        class_names: the names of the classes.
        path: the file to write.
        emd: how far the clients' class shares are from those of all, stands below the picture.

    Raises:
        ValueError: counts and names do not fit each other.
    """
    if counts.ndim != 2 or counts.shape[1] != len(class_names):
        raise ValueError(f"counts {counts.shape} do not fit {len(class_names)} class names")
    clients, classes = counts.shape
    figure = new_figure(
        width=float(np.clip(2.5 + 0.45 * clients, 6, 13)),
        height=float(np.clip(2.2 + 0.3 * classes, 4, 7.5)),
    )
    sizes, heat = figure.subplots(2, 1, sharex=True, height_ratios=[1, 4])
    sizes.bar(range(clients), counts.sum(1), width=1 if clients > 60 else 0.8, color=QUIET)
    sizes.set_ylabel("images")
    sizes.set_title(f"{counts.sum():,} images on {clients} clients", loc="left", color=INK)
    sizes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    sizes.spines[["top", "right"]].set_visible(False)
    # Small counts are what a skewed split is about: the root of the count keeps them visible.
    picture = heat.imshow(
        np.ma.masked_equal(counts, 0).T,
        aspect="auto",
        interpolation="nearest",
        cmap=COUNTS,
        norm=PowerNorm(0.5, vmin=0, vmax=max(1, int(counts.max(initial=0)))),
    )
    heat.set_xlabel("client" if emd is None else f"client\n{EMD.format(emd)}")
    heat.xaxis.set_major_locator(MaxNLocator(20, integer=True, min_n_ticks=1))
    _name_classes(heat, class_names)
    if clients <= 20 and classes <= 20:
        _write_counts(heat, counts)
    else:
        figure.colorbar(picture, ax=[sizes, heat], label="images of the class", pad=0.01)
    with replacing(Path(path)) as temporary:
        figure.savefig(temporary, format="png")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; width and height in inches."""
    # Not pyplot: no global state, no display, nothing to close.
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_losses(panel: Axes, metrics: Metrics) -> None:
    panel.set_title("loss")
    names = dict.fromkeys(name for record in metrics for name in record.get("loss") or {})
    parts = [name for name in names if name != "total"]
    for name, colour in zip(parts, itertools.cycle(COLOURS), strict=False):
        _line(panel, _points(metrics, "loss", name), name, colour)
    _line(panel, _points(metrics, "loss", "total"), "total", INK)


def _draw_scores(panel: Axes, metrics: Metrics) -> None:
    panel.set_title("accuracy on the test images, %")
    untrained = [record for record in metrics if record["round"] == 0]
    trained = _trained(metrics)
    saved, *others = dict.fromkeys(b for r in metrics for b in r.get("scores") or {}) or ["target"]
    for key, name, colour in (("knn", "kNN", KNN), ("linear", "linear probe", LINEAR)):
        for backbone, alpha in ((saved, 1.0), *((other, 0.4) for other in others)):
            points = _points(trained, "scores", backbone, key, factor=100)
            _line(panel, points, f"{name}, {backbone}", colour, alpha=alpha)
        for _, value in _points(untrained, "scores", saved, key, factor=100)[-1:]:
            panel.axhline(value, color=colour, ls="--", lw=1, label=f"{name}, untrained")


def _draw_traffic(panel: Axes, metrics: Metrics) -> None:
    panel.set_title("traffic of a training round, MB")
    trained = _trained(metrics)
    _line(panel, _points(trained, "bytes_up", factor=1e-6), "up", COLOURS[0])
    _line(panel, _points(trained, "bytes_down", factor=1e-6), "down", COLOURS[1])


def _draw_seconds(panel: Axes, metrics: Metrics) -> None:
    panel.set_title("time of a training round, s")
    trained = _trained(metrics)
    _line(panel, _points(trained, "seconds"), "", COLOURS[2])


def _trained(metrics: Metrics) -> Metrics:
    return [record for record in metrics if record["round"] > 0]


def _points(metrics: Metrics, *keys: str, factor: float = 1) -> list[tuple[int, float]]:
    """Rounds and values, in the rounds that have one (null in JSON: not finite)."""
    found = ((record["round"], lookup(record, *keys)) for record in metrics)
    return [(round, factor * value) for round, value in found if value is not None]


def _line(
    panel: Axes, points: list[tuple[int, float]], label: str, colour: str, alpha: float = 1
) -> None:
    if points:
        marker = "o" if len(points) <= 25 else ""
        panel.plot(
            *zip(*points, strict=True),
            label=label,
            color=colour,
            alpha=alpha,
            marker=marker,
            markersize=3.5,
            linewidth=1.6,
        )


def _tidy(panel: Axes, metrics: Metrics, from_zero: bool) -> None:
    style_axes(panel)
    panel.set_xlabel("round", color=INK)
    panel.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
    last = max((record["round"] for record in metrics), default=1)
    panel.set_xlim(-0.02 * last - 0.1, 1.02 * last + 0.1)
    if not panel.lines:
        panel.text(0.5, 0.5, "not measured", transform=panel.transAxes, color=QUIET, ha="center")
        panel.set_yticks([])
        return
    if from_zero:
        panel.set_ylim(0, 1.05 * panel.get_ylim()[1])
    if panel.get_legend_handles_labels()[1]:
        panel.legend(fontsize=8, labelcolor=INK, framealpha=0.85, edgecolor="none")


def style_axes(panel: Axes) -> None:
    """The style that all our axes share."""
    panel.set_title(panel.get_title(), loc="left", color=INK, fontsize=11)
    panel.set_title("")
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["bottom", "left"]].set_color(QUIET)
    panel.tick_params(colors=INK, labelsize=9)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)


def _name_classes(heat: Axes, names: Sequence[str]) -> None:
    if len(names) <= 30:
        shown = map(printable, names)
        short = [name if len(name) <= 18 else name[:17] + "\u2026" for name in shown]
        heat.set_yticks(range(len(names)), short, fontsize=8, parse_math=False)  # a $ is a $
    else:
        heat.set_ylabel("class")
        heat.yaxis.set_major_locator(MaxNLocator(10, integer=True))


def _write_counts(heat: Axes, counts: NDArray[np.integer[Any]]) -> None:
    bright = counts.max(initial=1) / 6  # .4 of the colour scale, which is a root
    for client, label in np.argwhere(counts):
        count = counts[client, label]
        colour = "white" if count > bright else INK
        heat.text(client, label, str(count), ha="center", va="center", fontsize=7, color=colour)
