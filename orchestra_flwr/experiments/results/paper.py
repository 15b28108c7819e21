"""The numbers that the papers print, beside which ours are shown: the YAML files of this folder."""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from orchestra_flwr.config import read_config_file
from orchestra_flwr.experiments.results.statistics import Sample

SEEDS = 3  # "All results are averaged over 3 seeds" (Orchestra, section 6)
MUTUAL_INFORMATION = "mutual_information"
FILES = ("paper", MUTUAL_INFORMATION, "dec_ssl")


@cache
def _values(file: str) -> dict[str, Any]:
    return read_config_file(Path(__file__).with_name(f"{file}.yaml"))


def paper_source(experiment: str) -> str | None:
    """The citation of the paper whose table or figure an experiment is; None of a user's own."""
    file = _file(experiment)
    return " ".join(str(_values(file)["source"]).split()) if file else None


def paper_value(experiment: str, values: Mapping[str, str], measure: str) -> Sample | None:
    """What the paper prints for a row, in its unit; None where it prints nothing.

    Args:
        values: the row's value on each axis; axes that the paper's entry does not name are free.
    """
    file = _file(experiment)
    for entry in _values(file)[experiment] if file else ():
        axes = {key: value for key, value in entry.items() if isinstance(value, str)}
        if measure in entry and axes.items() <= values.items():
            printed = entry[measure]
            mean, error = printed if isinstance(printed, list) else (printed, None)
            return _sample(str(file), float(mean), error)
    return None


def _file(experiment: str) -> str | None:
    return next((file for file in FILES if experiment in _values(file)), None)


def _sample(file: str, mean: float, error: float | None) -> Sample:
    """A sample with the deviation over seeds, even if a paper prints the mean's standard error."""
    seeds = int(_values(file).get("seeds", SEEDS))
    if error is not None and file == MUTUAL_INFORMATION:
        error *= math.sqrt(seeds)
    return Sample(mean, None if error is None else float(error), seeds)
