"""Composes Hydra's files and a command line's overrides into a checked configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestra_flwr.config.section import (
    Composed,
    ConfigError,
    Section,
    known_keys,
    parse,
    suggestion,
)
from orchestra_flwr.config.sections import Config

# What may differ when a run is resumed: where it runs and what is shown, never what is computed.
RESUME_MAY_CHANGE = (
    "engine",
    "ray",
    "device",
    "logging",
    "data.root",
    "data.cache",
    "host",
    "port",
    "insecure",
    "security",
    "federation.min_clients",
    "federation.round_timeout",
)

C = TypeVar("C", bound=Composed)


def load_config(overrides: Sequence[str] = ()) -> Config:
    """A simulation's configuration: see :func:`load`."""
    return load(Config, overrides)


def load(section: type[C], overrides: Sequence[str] = ()) -> C:
    """Composes `conf/` with Hydra overrides such as ``data=cifar10 training.lr=0.01``.

    Args:
        section: the kind of configuration.
        overrides: as on a command line.

    With ``resume=<run folder>`` the configuration is the run's own; overrides may only repeat it
    or change where it runs (`RESUME_MAY_CHANGE`).

    Raises:
        ConfigError: an unknown key, a wrong value, or a resume with another configuration.
    """
    overrides = [_at_home(override) for override in overrides]
    composed = _compose(section, overrides)
    if composed.get("resume"):
        return parse(section, _resumed(Path(str(composed.resume)), composed, overrides))
    try:
        return parse(section, OmegaConf.to_container(composed, resolve=True))
    except OmegaConfBaseException as error:
        parse(section, OmegaConf.to_container(composed))  # tells the value that leads nowhere
        raise ConfigError(_one_line(error)) from None


def config_to_yaml(config: Section) -> str:
    """The whole configuration as YAML, as it stands in a run folder."""
    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump()))


def every_key(section: type[Composed]) -> str:
    """All keys with their defaults as YAML; also where some must be given."""
    return OmegaConf.to_yaml(_compose(section, ()), resolve=True)


def conf_dir() -> Path:
    """The folder of Hydra's files: inside an installed package, else beside it."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def _compose(section: type[Composed], overrides: Sequence[str]) -> DictConfig:
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
            composed = compose(section.file, list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_describe_hydra(error, section, overrides)) from None
    for key in _parsed(overrides):
        if key.partition(".")[0] in section.unused:
            raise ConfigError(f"{key}: unknown key{suggestion(key, list(known_keys(section)))}")
    return OmegaConf.masked_copy(composed, [str(k) for k in composed if k not in section.unused])


def _at_home(override: str) -> str:
    """`key=~/path` as a shell would give it, had it looked behind the equals sign."""
    key, _, value = override.partition("=")
    return f"{key}={Path(value).expanduser()}" if value.startswith("~") else override


def _resumed(folder: Path, composed: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    file = folder / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"resume={folder}: no run folder (it holds no config.yaml)")
    saved = OmegaConf.load(file)
    for key in _touched(overrides):
        new, old = OmegaConf.select(composed, key), OmegaConf.select(saved, key)
        if key in ("resume", "run_dir") or new == old:
            continue
        if not any(key == free or key.startswith(free + ".") for free in RESUME_MAY_CHANGE):
            raise ConfigError(
                f"{key}={new}: a resumed run keeps its own configuration, which has {key}={old}"
            )
        OmegaConf.update(saved, key, new, merge=False)
    values = OmegaConf.to_container(saved, resolve=True)
    assert isinstance(values, dict)
    return {**values, "resume": str(folder), "run_dir": str(folder)}


def _touched(overrides: Sequence[str]) -> Iterator[str]:
    """The keys that overrides set; a preset has none of its own, but sets others."""
    for key, value in _parsed(overrides).items():
        if key == "preset" and value is not None:
            preset = OmegaConf.load(conf_dir() / "preset" / f"{value}.yaml")
            for part, values in preset.items():
                yield from (f"{part!s}.{name!s}" for name in values)
        else:
            yield key


def _parsed(overrides: Sequence[str]) -> dict[str, Any]:
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return {override.key_or_group: override.value() for override in parsed}


def _describe_hydra(error: Exception, section: type[Section], overrides: Sequence[str]) -> str:
    known = list(known_keys(section))
    try:
        given = _parsed(overrides)
    except HydraException as syntax:
        return f"overrides are written key=value: {_one_line(syntax)}"
    for key, value in given.items():
        choices = sorted(file.stem for file in (conf_dir() / key).glob("*.yaml"))
        if choices and value not in choices:
            return f"{key}={value}: must be one of {', '.join(choices)}"
        if not choices and key not in known and key.partition(".")[0] != "method":
            return f"{key}: unknown key{suggestion(key, known)}"
    return _one_line(error)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
