"""Figures of one run: curves over the rounds, and the split of the data over the clients."""

import io
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import lookup
from orchestra_flwr.files import replacing

Metrics = Sequence[dict[str, Any]]

INK, QUIET = "#333333", "#8c8c8c"
# Okabe and Ito's palette, whose colours colour-blind readers can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
KNN, LINEAR = COLOURS[:2]
# Does not start at white, which is left for clients without the class.
COUNTS = LinearSegmentedColormap.from_list("counts", ["#d6e6f4", "#5aa2cf", "#0b559f", "#08244d"])
COSTS = (  # title, key in the metrics, factor, colour
    ("sent by clients, MB", "bytes_up", 1e-6, COLOURS[0]),
    ("received by clients, MB", "bytes_down", 1e-6, COLOURS[1]),
    ("time, s", "seconds", 1.0, COLOURS[2]),
)
LABEL_FREE = (  # title, key in the scores and name; whether the axis begins at 0
    (("dimensions of the features", "effective_rank", "effective rank"), True),
    (("score (align + 0.2 unif)", "score", "score"), False),
)
MAX_NAMES = 30  # of clients or classes along an axis; parse_math=False prints a $ in one as it is
EMD = "EMD {:.2f} (mean L1 distance of class shares, 0 to 2)"


def curves_figure(metrics: Metrics, name: str = "") -> Figure:
    """Loss, accuracy, scores without labels, traffic up and down, and time over the rounds.

    Args:
        metrics: the records of `metrics.jsonl`. What no round has gets no panel; scores of round 0,
            before training, are drawn as dashed lines.
        name: of the run, printed above; "": none.
    """
    trained, has_free = _trained(metrics), _has_scores(metrics, "score")
    drawn: list[tuple[Callable[[Axes, Metrics], None], bool]] = [
        *([(_draw_losses, False)] * any(_points(metrics, "loss", n) for n in _losses(metrics))),
        *([(_draw_scores, False)] * any(_has_scores(metrics, key) for key in ("knn", "map"))),
        *((partial(_draw_label_free, *names), zero) for names, zero in LABEL_FREE if has_free),
        *((partial(_draw_cost, cost), True) for cost in COSTS if _points(trained, cost[1])),
    ]
    rows = 1 if len(drawn) <= 3 else 2
    columns = -(-len(drawn) // rows)
    figure = new_figure(5 * max(1, columns), 3.2 * rows, name)
    if not drawn:
        figure.text(0.5, 0.5, "no round has ended", color=QUIET, ha="center")
        return figure
    axes = figure.subplots(rows, columns, squeeze=False)
    for (draw, from_zero), panel in zip(drawn, axes.flat, strict=False):
        draw(panel, metrics)
        _tidy(panel, metrics, from_zero=from_zero)
    for panel in axes.flat[len(drawn) :]:
        panel.remove()
    return figure


def partition_figure(
    counts: NDArray[np.integer[Any]],
    class_names: Sequence[str] | None,
    *,
    clients: Sequence[str] = (),
    emd: float | None = None,
    name: str = "",
) -> Figure:
    """The number of images by client and class.

    Args:
        counts: (clients, classes) numbers of images; (clients, 1) of images without labels.
        class_names: the names of the classes; None: the images have no labels.
        clients: their names; without them, they are numbered.
        emd: how far the clients' class shares are from those of all, printed below the picture.
        name: of the run, printed above; "": none.

    Raises:
        ValueError: counts and names do not fit each other.
    """
    names = ["images"] if class_names is None else class_names
    if counts.ndim != 2 or counts.shape[1] != len(names):
        raise ValueError(f"counts {counts.shape} do not fit {len(names)} class names")
    width = float(np.clip(2.5 + 0.45 * len(counts), 6, 13))
    if class_names is None:
        figure = new_figure(width, 3.2, name)
        sizes = figure.subplots()
        _draw_sizes(sizes, counts, "images without labels")
        _name_clients(sizes, clients, len(counts))
        return figure
    classes = len(names)
    figure = new_figure(width, float(np.clip(2.5 + 0.3 * classes, 4.3, 7.8)), name)
    sizes, heat = figure.subplots(2, 1, sharex=True, height_ratios=[1, 4])
    _draw_sizes(sizes, counts, "images")
    # Small counts matter most in a skewed split: the root of the count keeps them visible.
    picture = heat.imshow(
        np.ma.masked_equal(counts, 0).T,
        aspect="auto",
        interpolation="nearest",
        cmap=COUNTS,
        norm=PowerNorm(0.5, vmin=0, vmax=max(1, int(counts.max(initial=0)))),
    )
    _name_clients(heat, clients, len(counts))
    if emd is not None:
        heat.set_xlabel(f"client\n{EMD.format(emd)}")
    heat.set_ylabel("class", color=INK)
    _name_classes(heat, names)
    if len(counts) <= 20 and classes <= 20:
        _write_counts(heat, counts)
    shades = figure.colorbar(picture, ax=[sizes, heat], pad=0.01, aspect=40)
    shades.set_label("images of the class (white: none)", color=INK)
    shades.outline.set_visible(False)
    return figure


def save_png(figure: Figure, path: Path) -> None:
    """Writes a figure to `path`.

    Raises:
        OSError: names the file.
    """
    with replacing(path) as temporary:
        _write_png(figure, temporary)


@contextmanager
def without_glyph_warnings() -> Iterator[None]:
    """Letters that matplotlib's font lacks, such as Chinese, become boxes in the block's pictures.

    No warning is shown, as nothing else can be drawn; files beside the pictures have the names.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


def _write_png(figure: Figure, target: Path | io.BytesIO) -> None:
    with without_glyph_warnings():
        figure.savefig(target, format="png")


class Picture(Figure):
    """A figure that a notebook shows, whichever backend matplotlib has there."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        _write_png(self, content)
        return content.getvalue()


def _draw_sizes(panel: Axes, counts: NDArray[np.integer[Any]], what: str) -> None:
    """How many images each client has."""
    clients = len(counts)
    panel.bar(range(clients), counts.sum(1), width=1 if clients > 60 else 0.8, color=QUIET)
    panel.set_ylabel("images", color=INK)
    panel.set_title(
        f"{counts.sum():,} {what} on {clients} client{'s' * (clients != 1)}", loc="left", color=INK
    )
    panel.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    panel.spines[["top", "right"]].set_visible(False)


def new_figure(width: float, height: float, name: str = "") -> Figure:
    """An empty figure; width and height in inches, the name of the run above."""
    # Not pyplot: no global state, no display, nothing to close.
    figure = Picture(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    if name:
        title = figure.suptitle(printable(name), x=0.01, ha="left", fontsize=10, color=QUIET)
        title.set_parse_math(False)  # prints a $ as it is
    return figure


def _losses(metrics: Metrics) -> list[str]:
    return [*dict.fromkeys(name for record in metrics for name in record.get("loss") or {})]


def _draw_losses(panel: Axes, metrics: Metrics) -> None:
    panel.set_title("loss")
    parts = [name for name in _losses(metrics) if name != "total"]
    for name, colour in zip(parts, itertools.cycle(COLOURS), strict=False):
        _line(panel, _points(metrics, "loss", name), name, colour)
    _line(panel, _points(metrics, "loss", "total"), "total", INK)


def _draw_scores(panel: Axes, metrics: Metrics) -> None:
    precision = _has_scores(metrics, "map")
    panel.set_title(f"{'precision (mAP)' if precision else 'accuracy'} on the test images, %")
    untrained = [record for record in metrics if record["round"] == 0]
    trained = _trained(metrics)
    saved, *others = _backbones(metrics)
    kinds = (("knn", "kNN", KNN), ("linear", "linear probe", LINEAR), ("map", "mAP", COLOURS[2]))
    for backbone, alpha in ((saved, 1.0), *((other, 0.4) for other in others)):
        for key, name, colour in kinds:
            points = _points(trained, "scores", backbone, key, factor=100)
            _line(panel, points, f"{name}, {backbone}", colour, alpha=alpha)
    for key, name, colour in kinds:
        for _, value in _points(untrained, "scores", saved, key, factor=100)[-1:]:
            panel.axhline(value, color=colour, ls="--", lw=1, label=f"{name}, before training")


def _draw_label_free(title: str, key: str, name: str, panel: Axes, metrics: Metrics) -> None:
    """Scores of the saved backbone on the server's and clients' images; dashed before training."""
    panel.set_title(f"{title}, without labels")
    places = {"server": ("scores", _backbones(metrics)[0]), "clients": ("unsupervised",)}
    untrained = [record for record in metrics if record["round"] == 0]
    for (whose, place), colour in zip(places.items(), COLOURS, strict=False):
        _line(panel, _points(_trained(metrics), *place, key), f"{name}, {whose}", colour)
        for _, value in _points(untrained, *place, key)[-1:]:
            panel.axhline(value, color=colour, ls="--", lw=1)


def _backbones(metrics: Metrics) -> list[str]:
    """Those that have scores, the saved one first."""
    return [*dict.fromkeys(name for r in metrics for name in r.get("scores") or {})] or ["target"]


def _has_scores(metrics: Metrics, key: str) -> bool:
    """Whether any round has this score, on the server's or on clients' images."""
    scores = [values for r in metrics for values in (r.get("scores") or {}).values()]
    label_free = [r.get("unsupervised") or {} for r in metrics]
    return any(key in values for values in [*scores, *label_free])


def _draw_cost(cost: tuple[str, str, float, str], panel: Axes, metrics: Metrics) -> None:
    title, key, factor, colour = cost
    panel.set_title(f"{title}, in each round")
    _line(panel, _points(_trained(metrics), key, factor=factor), "", colour)


def _trained(metrics: Metrics) -> Metrics:
    return [record for record in metrics if record["round"] > 0]


def _points(metrics: Metrics, *keys: str, factor: float = 1) -> list[tuple[int, float]]:
    """Rounds and values, in the rounds that have one (null in JSON: not finite)."""
    values = ((record["round"], lookup(record, *keys)) for record in metrics)
    return [(round, factor * value) for round, value in values if value is not None]


def _line(
    panel: Axes, points: list[tuple[int, float]], label: str, colour: str, *, alpha: float = 1
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
    if from_zero:
        panel.set_ylim(0, 1.05 * panel.get_ylim()[1])
    if entries := len(panel.get_legend_handles_labels()[1]):
        _legend_above(panel, entries)


def _legend_above(panel: Axes, entries: int) -> None:
    """Puts the legend between title and axes, where it hides no point; fills it by columns."""
    rows = 1 if entries <= 3 else 2
    title = panel.get_title(loc="left")
    panel.set_title(title, loc="left", color=INK, fontsize=11, pad=5 + 13 * rows)
    panel.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=-(-entries // rows),
        fontsize=8,
        labelcolor=INK,
        frameon=False,
        borderaxespad=0.1,
        borderpad=0.2,
        handlelength=1.5,
        columnspacing=0.9,
    )


def style_axes(panel: Axes) -> None:
    """Gives axes the style that all figures share."""
    panel.set_title(panel.get_title(), loc="left", color=INK, fontsize=11)
    panel.set_title("")
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["bottom", "left"]].set_color(QUIET)
    panel.tick_params(colors=INK, labelsize=9)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)


def _name_clients(panel: Axes, names: Sequence[str], count: int) -> None:
    panel.set_xlabel("client", color=INK)
    numbered = [str(number) for number in range(count)]
    if len(names) <= MAX_NAMES and list(names) not in ([], numbered):
        panel.set_xticks(range(count), _short(names), fontsize=8, parse_math=False, rotation=30)
    else:
        panel.xaxis.set_major_locator(MaxNLocator(20, integer=True, min_n_ticks=1))


def _short(names: Sequence[str]) -> list[str]:
    shown = map(printable, names)
    return [name if len(name) <= 18 else name[:17] + "\u2026" for name in shown]


def _name_classes(heat: Axes, names: Sequence[str]) -> None:
    if len(names) <= MAX_NAMES:
        heat.set_yticks(range(len(names)), _short(names), fontsize=8, parse_math=False)
    else:
        heat.set_ylabel("class")
        heat.yaxis.set_major_locator(MaxNLocator(10, integer=True))


def _write_counts(heat: Axes, counts: NDArray[np.integer[Any]]) -> None:
    bright = counts.max(initial=1) / 6  # .4 of the colour scale, which is a root
    for client, label in np.argwhere(counts):
        count = counts[client, label]
        colour = "white" if count > bright else INK
        heat.text(client, label, str(count), ha="center", va="center", fontsize=7, color=colour)
