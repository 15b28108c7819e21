"""The command line of `orchestra-experiment`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.files import at_home

EXPERIMENT_KEYS = ("experiment", "scale", "seeds", "only", "transfer_root", "folder", "jobs")


@dataclass(frozen=True)
class ExperimentLine:
    """What a command line asks for.

    Attributes:
        experiment: its name.
        scale: its scale.
        seeds, only: as in `make_plan`.
        transfer_root: where the other images are that encoders are evaluated on; None: not given.
        folder: of all runs and the report.
        jobs: runs side by side; None: the scale's own.
        extra: overrides of every run.
    """

    experiment: str
    scale: str
    seeds: tuple[int, ...] | None
    only: tuple[str, ...]
    transfer_root: str | None
    folder: Path
    jobs: int | None
    extra: tuple[str, ...]


def read_experiment(overrides: Sequence[str], names: Sequence[str]) -> ExperimentLine:
    """Tells the experiment's own keys and the overrides of its runs apart.

    Args:
        overrides: the key=value of the command line.
        names: the experiments that there are.

    Raises:
        ConfigError: no experiment, or what must be a number is none.
    """
    own = [each for each in overrides if each.partition("=")[0] in EXPERIMENT_KEYS]
    given = dict(each.partition("=")[::2] for each in own)
    if "experiment" not in given:
        raise ConfigError(f"experiment: must be given, one of {', '.join(names)}")
    seeds = given["seeds"].split(",") if "seeds" in given else None
    return ExperimentLine(
        experiment=given["experiment"],
        scale=given.get("scale", "small"),
        seeds=None if seeds is None else tuple(_whole("seeds", seed, 0) for seed in seeds),
        only=tuple(given["only"].split(",")) if given.get("only") else (),
        transfer_root=given.get("transfer_root") or None,
        folder=at_home(given.get("folder", "outputs/experiments")),
        jobs=_whole("jobs", given["jobs"], 1) if "jobs" in given else None,
        extra=tuple(each for each in overrides if each not in own),
    )


def _whole(key: str, text: str, least: int) -> int:
    if not text.strip().isdecimal() or int(text) < least:
        raise ConfigError(f"{key}={text}: must be a whole number, at least {least}")
    return int(text)
