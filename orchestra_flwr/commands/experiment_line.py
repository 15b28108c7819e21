"""The command line of `orchestra-experiment`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.files import at_home

EXPERIMENT_KEYS = ("experiment", "scale", "seeds", "only", "transfer_root", "folder", "jobs")


@dataclass(frozen=True)
class ExperimentLine:
    """A parsed command line."""

    experiment: str
    scale: str
    seeds: tuple[int, ...] | None  # as in `make_plan`, like `only`
    only: tuple[str, ...]
    transfer_root: str | None
    folder: Path
    jobs: int | None  # side by side; None: the scale's
    extra: tuple[str, ...]  # overrides of every run


def read_experiment(overrides: Sequence[str], names: Sequence[str]) -> ExperimentLine:
    """Separates the experiment's keys from the overrides of its runs; `names`: all experiments.

    Raises:
        ConfigError: no experiment is named, or a number is wrong.
    """
    pairs = [line.partition("=")[::2] for line in overrides]
    keys = {key: value for key, value in pairs if key in EXPERIMENT_KEYS}
    if "experiment" not in keys:
        raise ConfigError(f"experiment: must be given, one of {', '.join(names)}")
    seeds = keys["seeds"].split(",") if "seeds" in keys else None
    return ExperimentLine(
        experiment=keys["experiment"],
        scale=keys.get("scale", "small"),
        seeds=None if seeds is None else tuple(_whole("seeds", seed, 0) for seed in seeds),
        only=tuple(keys["only"].split(",")) if keys.get("only") else (),
        transfer_root=keys.get("transfer_root") or None,
        folder=at_home(keys.get("folder", "outputs/experiments")),
        jobs=_whole("jobs", keys["jobs"], 1) if "jobs" in keys else None,
        extra=tuple(x for x, (key, _) in zip(overrides, pairs, strict=True) if key not in keys),
    )


def _whole(key: str, text: str, least: int) -> int:
    if not text.strip().isdecimal() or int(text) < least:
        raise ConfigError(f"{key}={text}: must be a whole number, at least {least}")
    return int(text)
