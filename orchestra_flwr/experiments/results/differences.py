"""Names of runs, made from the keys in which they differ."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra_flwr.config import Config, why_unread
from orchestra_flwr.console.text import flat
from orchestra_flwr.experiments.results.runs import Run

# Keys for where a run was and what it showed, not what it computed.
PLACES = ("run_dir", "resume", "name", "device", "seed", "engine", "logging", "plugins")
MAX_KEYS = 4  # in a name
NO_VALUE = "null"
UNREAD = object()


def by_difference(runs: Sequence[Run], folder: Path) -> dict[str, list[Run]]:
    """Runs by names such as "method=simclr, training.lr=0.01"; seeds of one run share a name.

    If a choice (method, data ...) differs, its options are left out, and so are keys that a run
    does not read; only runs that would then share a name are distinguished by options as well. Runs
    that differ in nothing but where they are have their folders' names.
    """
    named: dict[str, list[Run]] = {}
    for name, same in _named(runs):
        if name and name not in named and len({run.config.seed for run in same}) == len(same):
            named[name] = same
        else:  # the same run several times, or nothing differs
            for run in same:
                place = run.folder.relative_to(folder).as_posix()
                named[f"{name}, {place}".removeprefix(", ")] = [run]
    return named


def what_differs(runs: Sequence[Run]) -> dict[Path, str]:
    """The keys in which each run differs from others, by its folder; "": in none."""
    return {run.folder: name for name, same in _named(runs) for run in same}


def _named(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Runs that differ in their seeds alone, by the keys in which they differ from others."""
    values = [_read(run.config) for run in runs]
    groups: dict[frozenset[tuple[str, Any]], list[int]] = {}
    for number, mine in enumerate(values):
        groups.setdefault(frozenset(mine.items()), []).append(number)
    names = _names([values[members[0]] for members in groups.values()])
    members = [[runs[number] for number in group] for group in groups.values()]
    return list(zip(names, members, strict=True))


def _names(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each; names that are equal by the first keys get further keys."""
    names = [_name(mine, _differing(values)) for mine in values]
    for name in {name for name in names if names.count(name) > 1}:
        members = [number for number, other in enumerate(names) if other == name]
        keys = _differing([values[number] for number in members])
        for number in members:
            names[number] = f"{name}, {_name(values[number], keys)}".removeprefix(", ")
    return names


def _name(mine: Mapping[str, Any], keys: Sequence[str]) -> str:
    shown = [
        f"{key.removesuffix('.name')}={mine.get(key, NO_VALUE)}"
        for key in keys
        if mine.get(key) is not UNREAD
    ]
    return ", ".join(shown[:MAX_KEYS])


def _differing(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values differ; if a choice differs, its name alone."""
    keys = dict.fromkeys(key for run in values for key in run)
    missing = object()
    differing = [
        key for key in keys if len({run.get(key, missing) for run in values} - {UNREAD}) > 1
    ]
    choices = {key.removesuffix("name") for key in differing if key.endswith(".name")}
    return [
        key
        for key in differing
        if key.endswith(".name") or not any(key.startswith(choice) for choice in choices)
    ]


def _read(config: Config) -> dict[str, Any]:
    """What the run computes: values by their full names, UNREAD where nothing reads them."""
    unread = config.unread()
    return {
        key: UNREAD if why_unread(key, unread) else NO_VALUE if value is None else str(value)
        for key, value in flat(config.model_dump(mode="json")).items()
        if key.partition(".")[0] not in PLACES
    }
