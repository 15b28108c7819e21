"""What runs are called beside each other: by the keys in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestra_flwr.config import Config
from orchestra_flwr.config.unread import why_unread
from orchestra_flwr.experiments.results.runs import Run

# Where a run was and what it showed, not what it computed.
PLACES = ("run_dir", "resume", "name", "device", "seed", "engine", "logging", "plugins")
MOST_KEYS = 4  # in a name
NO_VALUE = "null"
UNREAD = object()


def by_difference(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by names such as "method=simclr, training.lr=0.01"; seeds of one are together.

    Of a choice that differs (method, data ...) its options are left out, and so is what a run does
    not read. Runs that differ in nothing but where they are have their folders' names.

    Args:
        runs: with configurations that can be read.
    """
    values = [_read(run.config) for run in runs]
    keys = _differing(values)
    named: dict[str, list[Run]] = {}
    for run, mine in zip(runs, values, strict=True):
        shown = [
            f"{key.removesuffix('.name')}={mine.get(key, NO_VALUE)}"
            for key in keys
            if mine.get(key) is not UNREAD
        ]
        named.setdefault(", ".join(shown[:MOST_KEYS]), []).append(run)
    found: dict[str, list[Run]] = {}
    for name, members in named.items():
        if name and len({run.config.seed for run in members}) == len(members):
            found[name] = members
        else:  # the same run several times, or nothing differs
            found |= {f"{name}, {run.name}".removeprefix(", "): [run] for run in members}
    return found


def _differing(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values differ; where a choice differs, the choice alone."""
    keys = dict.fromkeys(key for each in values for key in each)
    missing = object()
    differing = [
        key
        for key in keys
        if key.partition(".")[0] not in PLACES
        and len({each.get(key, missing) for each in values} - {UNREAD}) > 1
    ]
    choices = {key.removesuffix("name") for key in differing if key.endswith(".name")}
    return [
        key
        for key in differing
        if key.endswith(".name") or not any(key.startswith(choice) for choice in choices)
    ]


def _read(config: Config) -> dict[str, Any]:
    """All values as they are written, by their full names; UNREAD where nothing reads them."""
    unread = config.unread()
    return {
        key: UNREAD if why_unread(key, unread) else value
        for key, value in _flat(config.model_dump(mode="json")).items()
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """All values as they are written, by their full names."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = NO_VALUE if value is None else str(value)
    return flat
