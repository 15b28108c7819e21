"""Resuming a run: its configuration stays the same, except for where it runs."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from orchestra_flwr.config.reading.hydra_overrides import conf_folders_of
from orchestra_flwr.config.reading.overrides import values_of
from orchestra_flwr.config.reading.saved_config import parse_saved, read_config_file
from orchestra_flwr.config.section import Composed, ConfigError, within
from orchestra_flwr.files import at_home

# Keys that decide where a run is computed, who is waited for and what is shown, not the results.
WITHOUT_EFFECT = (
    "engine",
    "device",
    "logging",
    "data.root",
    "data.cache",
    "host",
    "port",
    "insecure",
    "security",
    "watch",
    "share",
    "federation.min_clients",
)
# Keys that may differ when a run is resumed; the last ones may have stopped it or made it wait.
RESUME_MAY_CHANGE = (
    *WITHOUT_EFFECT,
    "federation.round_timeout",
    "federation.max_update",
    "federation.enough",
    "federation.oversample",
    "federation.deadline",
)
MAY_GROW = "federation.rounds"


def is_free(override: str) -> bool:
    """Whether an override only changes where a run is computed or what is shown."""
    return within(override.partition("=")[0].lstrip("+"), WITHOUT_EFFECT)


def resumed(
    section: type[Composed],
    composed: DictConfig,
    overrides: Sequence[Override],
    suggested: Iterable[str] = (),
) -> dict[str, Any]:
    """The saved values of the run that `composed.resume` names, changed by allowed overrides.

    Args:
        composed: of the overrides; changed in place.
        suggested: keys that nobody has set; they keep the run's values.

    Raises:
        ConfigError: there is no such run, its configuration is damaged, or an override would change
            what is computed.
    """
    folder = Path(str(composed.resume))
    file = folder / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"resume={folder}: no run folder (it holds no config.yaml)")
    # As a resumed run, since an earlier resume may have changed who is waited for.
    run = parse_saved(section, read_config_file(file) | {"resume": str(folder)}, file)
    saved = run.model_dump(mode="json")
    for key in suggested:
        OmegaConf.update(composed, key, value_at(saved, key.split(".")))
    for key in touched(overrides):
        path = key.split(".")
        new, old = plain(OmegaConf.select(composed, key)), value_at(saved, path)
        if within(key, RESUME_MAY_CHANGE):
            _set(saved, path, new)
        elif key == MAY_GROW and new != old:
            _check_growth(run, new, old)
            _set(saved, path, new)  # with fewer, the run folder decides whether it can end there
        elif key == "run_dir":
            if new in (None, old) or at_home(new).resolve() == folder.resolve():
                continue
            raise ConfigError(
                f"run_dir={new}: a resumed run stays in its own folder; a copy of it can be "
                "resumed elsewhere"
            )
        elif key not in ("resume", "resume_round"):
            _refuse_difference(key, new, old)
    here = {"resume": str(folder), "run_dir": str(folder), "resume_round": composed.resume_round}
    return {**saved, **here}


def plain(value: Any) -> Any:
    """A composed value as one of Python's, with its references resolved."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def value_at(values: Any, path: Sequence[str]) -> Any:
    """The value at a path; None where there is none."""
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _set(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *sections, last = path
    for name in sections:
        values = values.setdefault(name, {})
    values[last] = value


def _check_growth(run: Any, new: Any, old: Any) -> None:
    """Refuses more rounds if their number changes the learning rates of earlier ones."""
    if run.schedule.plugin.changes and not (isinstance(new, int) and new < old):
        raise ConfigError(
            f"{MAY_GROW}={new}: the learning rates of schedule={run.schedule.name} were those for "
            f"{MAY_GROW}={old}; a new run can begin with its encoder (init={run.run_dir or '...'})"
        )


def _refuse_difference(key: str, new: Any, old: Any) -> None:
    """Compares the keys that both sections have: another version may have more of them."""
    if key in RESUME_MAY_CHANGE:
        return
    if isinstance(new, dict) and isinstance(old, dict):
        for name in [name for name in new if name in old]:
            _refuse_difference(f"{key}.{name}".removesuffix(".name"), new[name], old[name])
    elif new != old:
        raise ConfigError(
            f"{key}={new}: a resumed run keeps its own configuration, which has {key}={old}; "
            f"{MAY_GROW} may grow, and {', '.join(RESUME_MAY_CHANGE)} may change"
        )


def touched(overrides: Sequence[Override]) -> Iterator[str]:
    """The keys that overrides set, those set by a preset included."""
    for key, value in values_of(overrides).items():
        if key == "preset":
            yield from _touched_by_preset(str(value), conf_folders_of(overrides))
        else:
            yield key


def _touched_by_preset(name: str, folders: Sequence[Path]) -> Iterator[str]:
    """The keys that a preset and its own defaults set, and the groups that they choose."""
    files = [folder / "preset" / f"{name}.yaml" for folder in folders]
    for file in (file for file in files if file.is_file()):
        parts: Any = OmegaConf.to_container(OmegaConf.load(file))
        for default in parts.pop("defaults", ()):
            if isinstance(default, dict):
                yield from (str(group).rpartition("/")[2] for group in default)
            elif default != "_self_":
                yield from _touched_by_preset(default, folders)
        for suggestions in Composed.referred:  # no key of a run: only choices refer to it
            parts.pop(suggestions, None)
        for part, values in parts.items():
            yield from (f"{part}.{key}" for key in values) if isinstance(values, dict) else [part]
