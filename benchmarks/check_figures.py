"""Checks the figures of the pages against the committed records of their runs.

    python benchmarks/check_figures.py                  # thirty cells of tables, drawn at random
    python benchmarks/check_figures.py count=all
    python benchmarks/check_figures.py count=30 seed=7

docs/results/figures.yaml says which runs each table shows. A figure is right if it is the record's,
rounded to the printed decimals. Exit code 1: a figure is wrong.
"""

from __future__ import annotations

import itertools
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

from orchestra_flwr.console.text import lookup
from orchestra_flwr.files import read_json
from orchestra_flwr.reporting import RunFolder

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PAIR = "knn / linear"
DEVIATION = "sd "
GAIN = "gain "
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*|-?\.\d+")
AS_THEY_ARE = ("score", "effective_rank", "lidar")  # all other scores are fractions, printed in %
COUNTS: dict[str, Callable[[dict[str, Any]], float]] = {
    "minutes": lambda summary: summary["seconds"] / 60,
    "megabytes": lambda summary: (summary["bytes_up"] + summary["bytes_down"]) / 1e6,
    "megabytes_up": lambda summary: summary["bytes_up"] / 1e6,
}


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is printed, and what the records say."""

    page: str
    heading: str
    label: str
    printed: str
    recorded: tuple[float, ...]

    @property
    def is_right(self) -> bool:
        """Whether each printed figure is the record's, as far as it is printed."""
        printed = NUMBER.findall(self.printed)
        if len(printed) != len(self.recorded):
            return False
        return all(map(_rounds_to, self.recorded, printed))


def _rounds_to(value: float, text: str) -> bool:
    decimals = len(text.partition(".")[2])
    # Of a value in the middle between two either is right.
    return abs(value - float(text.replace(",", ""))) <= 0.5 * 10**-decimals + 1e-6


def cells(results: Path = RESULTS) -> list[Cell]:
    """All cells that figures.yaml names.

    Raises:
        KeyError: a table or a row that is not there.
    """
    named_cells: list[Cell] = []
    for entry in yaml.safe_load((results / "figures.yaml").read_text()):
        rows = _table(results / entry["page"], entry["heading"], entry.get("table", 1))
        runs = _Runs(results / "medium")
        place = (entry["page"], entry["heading"])
        for label, printed, recorded in _claims(entry, rows, runs):
            named_cells.append(Cell(*place, label, printed, tuple(recorded)))
    return named_cells


def _claims(
    entry: Mapping[str, Any], rows: Mapping[str, Sequence[str]], runs: _Runs
) -> Iterator[tuple[str, str, list[float]]]:
    """Of each cell its label, what is printed and what is recorded."""
    for column, names in entry.get("rounds", {}).items():
        for round_ in filter(str.isdigit, rows):
            if printed := rows[round_][column - 1]:
                label = f"round {round_}, column {column}"
                yield label, printed, runs.after_round(names, int(round_))
    measure = entry.get("measure", PAIR)
    for label, of_columns in entry.get("grid", {}).items():
        for number, names in enumerate(of_columns):
            if names:
                values = (
                    runs.after_round(names, entry["round"])
                    if "round" in entry
                    else runs.values(names, measure)
                )
                yield f"{label}, column {number + 1}", rows[label][number], values
    for label, names in entry.get("rows", {}).items():
        # Columns before the figures are words, such as what the images were.
        printed = rows[label][entry.get("skip", 0) :]
        for text, measure in zip(printed, entry["measures"], strict=False):
            yield f"{label}, {measure}", text, runs.values(names, measure)


class _Runs:
    """The records of runs, read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def values(self, names: Sequence[str], measure: str) -> list[float]:
        """Means over the runs of one or several keys of the summary.

        Of `sd KEY` the deviation, of `gain KEY` the difference to before training.
        """
        summaries = [read_json(self.folder / name / "summary.json") for name in names]
        values = []
        for key in map(str.strip, measure.split("/")):
            across = stdev if key.startswith(DEVIATION) else mean
            values.append(across(_value(s, key.removeprefix(DEVIATION)) for s in summaries))
        return values

    def after_round(self, names: Sequence[str], round_: int) -> list[float]:
        """kNN and probe of the saved backbone after a round, of the first run that has it."""
        for name in names:
            for record in RunFolder(self.folder / name).read_metrics():
                if record["round"] == round_ and (scores := record.get("scores")):
                    summary = self.folder / name / "summary.json"  # not of a run that was stopped
                    backbone = (
                        read_json(summary)["backbone"] if summary.exists() else next(iter(scores))
                    )
                    return [100 * scores[backbone][key] for key in ("knn", "linear")]
        return []


def _value(summary: dict[str, Any], key: str) -> float:
    if key.startswith(GAIN):
        score = key.removeprefix(GAIN)
        return _value(summary, score) - _value(summary, f"untrained.{score}")
    if key in COUNTS:
        return COUNTS[key](summary)
    value = lookup(summary, *key.split("."))
    if value is None:
        return float("nan")
    return float(value if key.rpartition(".")[2] in AS_THEY_ARE else 100 * value)


def _table(page: Path, heading: str, number: int) -> dict[str, list[str]]:
    """The rows of a table below a heading: the cells after the first, by what that says."""
    lines = iter(page.read_text().splitlines())
    if not any(re.fullmatch(f"#+ {re.escape(heading)}", line) for line in lines):
        raise KeyError(f"{page}: no heading {heading!r}")
    below = list(itertools.takewhile(lambda line: not line.startswith("#"), lines))
    blocks = [list(g) for is_row, g in itertools.groupby(below, _is_row) if is_row]
    if len(blocks) < number:
        raise KeyError(f"{page}: no table {number} below {heading!r}")
    rows = [line.strip()[1:-1].split("|") for line in blocks[number - 1]]
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in rows}


def _is_row(line: str) -> bool:
    return line.startswith("|")


def options(arguments: list[str]) -> dict[str, str]:
    """What the command line says.

    Raises:
        SystemExit: an unknown option, or a count that is none.
    """
    chosen = {"count": "30"}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key not in ("count", "seed") or not equals:
            raise SystemExit(f"error: {argument}: must be one of count, seed, as KEY=VALUE")
        chosen[key] = value
    if chosen["count"] != "all" and not chosen["count"].isdecimal():
        raise SystemExit(f"error: count={chosen['count']}: must be a number or all")
    return chosen


def main(arguments: list[str]) -> int:
    """Checks cells that are drawn at random, or all."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    chosen = options(arguments)
    to_check, count = cells(), chosen["count"]
    if count != "all":
        to_check = random.Random(chosen.get("seed")).sample(
            to_check, min(int(count), len(to_check))
        )
    wrong = 0
    for cell in to_check:
        wrong += not cell.is_right
        recorded = " / ".join(f"{value:.2f}" for value in cell.recorded) or "no record"
        sign = "ok   " if cell.is_right else "WRONG"
        place = f"{cell.page}, {cell.heading}, {cell.label}"
        print(f"{sign} {place}: {cell.printed} (record {recorded})")
    print(f"{len(to_check)} cells, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
