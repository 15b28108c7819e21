"""The linear theory of Dec-SSL: which axes do sources represent, with labels and without?

    python benchmarks/toy_theory.py outputs/theory --dimensions 256 1024 --sources 3 5

Simulates every combination of dimensions and sources, and writes theory.md, theory.json and
theory.png into a folder. Seconds for 256 and 1,024 dimensions, a minute for 4,096.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from toy_model import Outcome, Setting, simulate

from orchestra_flwr.files import replacing, write_atomically
from orchestra_flwr.reporting.plots import COLOURS, QUIET, new_figure

Outcomes = Sequence[tuple[Setting, Outcome]]

COLUMNS = {
    "SSL local: others": "ssl_others",
    "own": "ssl_own",
    "SSL global": "ssl_global",
    "SL local: own": "sl_own",
    "others": "sl_others",
    "SL correlation of others": "sl_correlation",
    "of its own": "sl_own_correlation",
}


def write_results(folder: Path, outcomes: Outcomes) -> Path:
    """Writes theory.md, theory.json and theory.png.

    Returns:
        The table's file.

    Raises:
        OSError: names the file that cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "theory.md"
    write_atomically(table, table_of(outcomes).encode())
    values = [{"setting": asdict(s), "outcome": _plain(o)} for s, o in outcomes]
    write_atomically(folder / "theory.json", (json.dumps(values, indent=1) + "\n").encode())
    draw(folder / "theory.png", outcomes)
    return table


def table_of(outcomes: Outcomes) -> str:
    """A Markdown table: representability and correlation of axes, and leading eigenvalues."""
    header = ["d, K", *COLUMNS, "leading eigenvalues"]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for setting, outcome in outcomes:
        cells = [f"{setting.dimensions}, {setting.sources}"]
        cells += [f"{getattr(outcome, name):.3f}" for name in COLUMNS.values()]
        *signal, noise = outcome.eigenvalues[: setting.sources + 1]
        cells.append(" ".join(f"{value:.3g}" for value in signal) + f", then {noise:.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(path: Path, outcomes: Outcomes) -> None:
    """Representability of each axis by each source of the first setting; the trend in d beside."""
    figure = new_figure(11, 4)
    panels = figure.subplots(1, 3)
    setting, first = outcomes[0]
    title = f"d = {setting.dimensions}, K = {setting.sources}"
    _draw_axes(panels[0], first.ssl, f"self-supervised, {title}")
    _draw_axes(panels[1], first.sl, f"supervised, {title}")
    panels[0].set_ylabel("representability of the axis")
    _draw_trend(panels[2], outcomes)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def _draw_axes(panel: Axes, table: np.ndarray, title: str) -> None:
    """Groups of bars: the sources; bars in them: the axes."""
    count = len(table)
    for axis in range(count):
        places = np.arange(count) + (axis - (count - 1) / 2) * 0.8 / count
        colour = COLOURS[axis % len(COLOURS)]
        panel.bar(places, table[:, axis], 0.75 / count, color=colour, label=f"axis {axis + 1}")
    panel.set_title(title, loc="left", fontsize=9)
    panel.set_xticks(range(count), [f"source {number + 1}" for number in range(count)])
    panel.set_ylim(0, 1.2)
    panel.legend(fontsize=7, loc="upper center", ncols=min(count, 5))
    panel.spines[["top", "right"]].set_visible(False)


def _draw_trend(panel: Axes, outcomes: Outcomes) -> None:
    shown = {
        "ssl_others": "SSL: others' axes",
        "sl_others": "SL: others' axes",
        "sl_own": "SL: own",
    }
    for sources, style in zip(
        sorted({s.sources for s, _ in outcomes}), itertools.cycle(("-", ":", "--")), strict=False
    ):
        for (name, label), colour in zip(shown.items(), COLOURS, strict=False):
            points = [(s.dimensions, getattr(o, name)) for s, o in outcomes if s.sources == sources]
            x, y = zip(*sorted(points), strict=True)
            panel.plot(x, y, style, marker="o", color=colour, label=f"{label}, K = {sources}")
    panel.set_xscale("log", base=2)
    panel.set_xlabel("dimensions d")
    panel.set_ylim(0, 1.05)
    panel.axhline(1, color=QUIET, linewidth=0.5)
    panel.legend(fontsize=6)
    panel.spines[["top", "right"]].set_visible(False)


def _plain(outcome: Outcome) -> dict[str, object]:
    values = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
    return {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in values.items()}


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the results")
    parser.add_argument("--dimensions", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--sources", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if min(options.sources) < 2:
        parser.error(f"--sources {min(options.sources)}: must be at least 2")
    if min(options.dimensions) < 4 * max(options.sources):
        parser.error(
            f"--dimensions {min(options.dimensions)}: must be at least {4 * max(options.sources)}"
        )
    return options


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)
    outcomes = []
    for sources, dimensions in itertools.product(options.sources, options.dimensions):
        setting = Setting(dimensions, sources, seed=options.seed)
        outcomes.append((setting, simulate(setting)))
        print(f"d={dimensions}, K={sources}: done", flush=True)
    print(f"results: {write_results(options.folder, outcomes)}")


if __name__ == "__main__":
    main(sys.argv[1:])
