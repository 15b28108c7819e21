"""The numbers that the paper prints, beside which ours are shown: `paper.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from orchestra_flwr.experiments.results.statistics import Sample

SEEDS = 3  # "All results are averaged over 3 seeds" (section 6)


@cache
def _values() -> dict[str, Any]:
    values = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("paper.yaml")))
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def paper_source() -> str:
    """The citation of the paper."""
    return " ".join(str(_values()["source"]).split())


def paper_value(experiment: str, values: Mapping[str, str], measure: str) -> Sample | None:
    """What the paper prints for a row, in its unit; None where it prints nothing.

    Args:
        experiment: the experiment's name.
        values: the row's value on each axis; axes that the paper's entry does not name are free.
        measure: the measure's name.
    """
    for entry in _values().get(experiment, []):
        axes = {key: value for key, value in entry.items() if isinstance(value, str)}
        if measure in entry and axes.items() <= values.items():
            printed = entry[measure]
            mean, deviation = printed if isinstance(printed, list) else (printed, None)
            return Sample(float(mean), None if deviation is None else float(deviation), SEEDS)
    return None
