"""The results of evaluating a saved encoder, as a file and as a table."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import percent
from orchestra_flwr.console.whole_table import print_whole
from orchestra_flwr.files import write_json
from orchestra_flwr.reporting.environment import environment

MAX_NAME = 200  # bytes of a file's name; file systems take 255, a temporary file needs some more
NAMES = {
    "knn": "kNN",
    "linear": "linear probe",
    "linear_fixed": "linear probe, penalty 1e-4",
    "linear_published": "linear probe, published schedule",
    "map": "mean average precision",
}

FEW_LABELS = {
    "linear_10": "linear probe with 10 % of the labels",
    "linear_1": "linear probe with 1 % of the labels",
}


def check_place(folder: Path, encoder: Path) -> None:
    """Refuses a folder of an encoder's results that cannot be written, before hours of work.

    Leaves no file. For a folder that does not exist yet, the nearest one above it is tried. Without
    the encoder's file nothing is checked: loading it says what is missing.

    Raises:
        ConfigError: names the folder, and why.
    """
    if not encoder.is_file():
        return
    above = (folder, *folder.absolute().parents)
    place = next(path for path in above if os.path.exists(path))  # noqa: PTH110 (never raises)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None


def write_evaluation(folder: Path, results: Mapping[str, Any], name: str | None = None) -> Path:
    """Writes or replaces `<folder>/<name>.json`, with the versions; returns its path.

    Args:
        folder: made where there is none.
        name: of the file; None: the data set's, as much of it as file systems take.

    Raises:
        OSError: names the file, which is unchanged.
    """
    stem = name or results["dataset"]
    while len(os.fsencode(stem)) > MAX_NAME:
        stem = stem[:-1]
    path = folder / f"{stem}.json"
    path.parent.mkdir(exist_ok=True)
    write_json(path, {**results, "versions": environment()})
    return path


def print_evaluation(results: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints the accuracies as a Markdown table, and the spread of the features below it.

    Beside an accuracy is its standard error, or the deviation over several draws of labels.
    """
    table = Table(box=box.MARKDOWN)
    # A user's folder gives the data set its name, in which brackets are no markup.
    title = Text(printable(f"{results['dataset']}, {results['backbone'] or 'encoder'}"))
    table.add_column(title)
    table.add_column("accuracy", justify="right")
    for row in _rows(results):
        table.add_row(*row)
    console = console or Console()
    print_whole(table, console)
    spread = f"spread of the features: {results['feature_std']:.2f} (0: collapsed; at most about 1)"
    console.out(spread, highlight=False)


def _rows(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, name in NAMES.items():
        if key in results:
            yield name, _with_spread(results[key], results.get(f"{key}_standard_error"))
    for key, name in FEW_LABELS.items():
        if key in results:
            yield name, _with_spread(results[key]["mean"], results[key]["std"])
    for fraction, runs in results.get("finetune", {}).items():
        yield (
            f"fine-tuned with {100 * float(fraction):g} % of the labels",
            _with_spread(runs["mean"], runs["std"]),
        )


def _with_spread(accuracy: float, spread: float | None) -> str:
    shown = "" if spread is None else f" ± {100 * spread:.1f}"
    return percent(accuracy).replace(" %", f"{shown} %")
