"""One command for several runs, --multirun: all combinations of the values given to keys."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestra_flwr.config import (
    Config,
    ConfigError,
    load_config,
    path_keys,
    swept_values,
    without_options_of_others,
    without_unread,
)
from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import lookup, percent
from orchestra_flwr.console.whole_table import print_whole
from orchestra_flwr.experiments.planning.rows import Row, run_name
from orchestra_flwr.experiments.results.comparison import why_left_out
from orchestra_flwr.experiments.results.runs import Run, read_run

FOLDER = Path("outputs/multirun")
PER_RUN = ("run_dir", "resume")  # every run has its own folder, and is resumed in it
MEASURES = {"kNN": "knn", "linear probe": "linear"}
PRECISION = {"mAP": "map"}  # of images with several labels


def make_sweep(arguments: Sequence[str]) -> tuple[list[Row], dict[str, Config]]:
    """The runs of a command line such as `method=simclr,orchestra seed=0,1 federation.rounds=5`.

    A key with one value is left out of the runs that do not read it.

    Returns:
        A row for every combination, and the configuration of each run by its name.

    Raises:
        ConfigError: no key has several values, a combination is not a valid run, two of them are
            the same run, a run does not read a key that has several values, or no run reads a key
            that has one.
    """
    axes, shared = _axes_and_shared(arguments)
    rows, configs = [], {}
    unread = set(shared)
    for combination in itertools.product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        swept = [f"{key}={value}" for key, value in chosen.items()]
        there = without_options_of_others([*shared, *swept], shared)[: -len(swept)]
        all_of_them = load_config([*there, *swept])
        read = without_unread(all_of_them, there)
        unread -= set(read)
        overrides = [*read, *swept]
        config = load_config(overrides, all_read=True)
        run = run_name(config, whole_root=True)
        if run in configs:
            raise ConfigError(
                f"--multirun: {' '.join(swept)} computes the same as another combination; leave "
                "out keys that only say where a run is computed or what is shown, and values that "
                "are given twice"
            )
        configs[run] = config
        values = {key.lstrip("+"): value for key, value in chosen.items()}
        rows.append(
            Row(
                values=values,
                seed=config.seed,
                overrides=tuple(o for o in overrides if _key(o) != "seed"),
                run=run,
                rounds=config.federation.rounds,
            )
        )
    if unread:
        load_config([*shared, *swept], all_read=True)  # says why nothing reads it
    return rows, configs


def _axes_and_shared(arguments: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The keys with several values, and the overrides that all runs share."""
    axes: dict[str, list[str]] = {}
    shared = []
    sweeps = swept_values(arguments, set(path_keys(Config)))
    for text, values in zip(arguments, sweeps, strict=True):
        if (key := _key(text)) in PER_RUN:
            raise ConfigError(f"{key}: must not be given with --multirun, runs are in {FOLDER}/")
        if len(values) > 1:
            axes[text.partition("=")[0]] = values
        else:
            shared.append(text)
    if not axes:
        raise ConfigError("--multirun: a key must have several values, such as seed=0,1,2")
    return axes, shared


def print_sweep(rows: Sequence[Row], folder: Path, console: Console | None = None) -> None:
    """Prints a row for every run: its values, its accuracies with their gain, its folder.

    Measures that training made worse by more than their standard error are marked.

    Above them is a row for each encoder before training, with the values that its runs share. A run
    that was resumed with more rounds has no accuracies, and a line below says so.
    """
    table = Table(box=box.MARKDOWN)
    for axis in rows[0].values:
        table.add_column(printable(axis))
    runs = {row.run: read_run(folder / row.run) for row in rows}
    measures = _measures([run for run in runs.values() if run is not None])
    for title in measures:
        table.add_column(title, justify="right")
        table.add_column("gain", justify="right")
    table.add_column("run")
    left_out: dict[str, str] = {}
    lines: list[tuple[list[str], str]] = []
    of_same_start: dict[tuple[float | None, ...], list[Row]] = {}
    for row in rows:
        run = runs[row.run]
        if run and (why := why_left_out(run, row)):
            left_out[row.run], run = why, None
        scored = [_scores(run, measure) for measure in measures.values()]
        cells = [cell for scores in scored for cell in (_score(scores[1]), _gain(*scores))]
        lines.append(([escape(printable(value)) for value in row.values.values()] + cells, row.run))
        if any(before is not None for before, *_ in scored):
            of_same_start.setdefault(tuple(before for before, *_ in scored), []).append(row)
    for scores, members in of_same_start.items():
        values = [{row.values[axis] for row in members} for axis in rows[0].values]
        shared = [
            escape(printable(min(of_axis))) if len(of_axis) == 1 else "-" for of_axis in values
        ]
        before_cells = [cell for score in scores for cell in (_score(score), "")]
        table.add_row(*shared, *before_cells, "before training")
    for cells, name in lines:
        table.add_row(*cells, name)
    console = console or Console(emoji=False)  # a name may hold what looks like a code
    print_whole(table, console)
    for name, why in left_out.items():
        console.out(printable(f"left out: {name} {why}"), highlight=False)
    console.out(printable(f"runs: {folder}"), highlight=False)


def _measures(runs: Sequence[Run]) -> dict[str, str]:
    """Measures by title: accuracies, also mAP if a run has it; mAP alone if all ended runs do."""
    if not any(run.measure("map") is not None for run in runs):
        return MEASURES
    others = any(run.measure(name) is not None for run in runs for name in MEASURES.values())
    return MEASURES | PRECISION if others else PRECISION


def _score(score: float | None) -> str:
    return "-" if score is None else percent(score)


def _scores(run: Run | None, measure: str) -> tuple[float | None, float | None, float]:
    """Before and after training, and the standard error of the second; 0: unknown."""
    if run is None:
        return None, None, 0.0
    error = lookup(run.summary, f"{measure}_standard_error")
    return run.before(measure), run.measure(measure), error or 0.0


def _gain(before: float | None, after: float | None, error: float) -> str:
    if before is None or after is None:
        return "-"
    return f"{100 * (after - before):+.1f}" + " (worse)" * (after < before - error)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")
