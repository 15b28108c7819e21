"""Composes Hydra's files and a command line's overrides into a checked configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestra_flwr.config.choice import Choice
from orchestra_flwr.config.renamed import migrated, renamed
from orchestra_flwr.config.run import Config
from orchestra_flwr.config.section import (
    Composed,
    ConfigError,
    Section,
    known_keys,
    parse,
    suggestion,
)
from orchestra_flwr.plugins import PluginError, conf_folders

# What may differ when a run is resumed: where it runs and what is shown, never what is computed.
RESUME_MAY_CHANGE = (
    "engine",
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
    overrides = renamed([_at_home(override) for override in overrides])
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
    folders = _folders(overrides)
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(folders[0])):
            composed = compose(section.file, _for_hydra(section, overrides, folders))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_describe_hydra(error, section, overrides)) from None
    for key in _parsed(overrides):
        if key.partition(".")[0] in section.unused:
            raise ConfigError(f"{key}: unknown key{suggestion(key, list(known_keys(section)))}")
    return OmegaConf.masked_copy(composed, [str(k) for k in composed if k not in section.unused])


def _folders(overrides: Sequence[str]) -> list[Path]:
    """This package's folder of Hydra's files, and those of the users' packages."""
    try:
        packages = _parsed(o for o in overrides if o.startswith("plugins=")).get("plugins") or ()
        return [conf_dir(), *conf_folders([packages] if isinstance(packages, str) else packages)]
    except HydraException:
        return [conf_dir()]  # composing tells what is wrong with the list
    except PluginError as error:
        raise ConfigError(f"plugins: {error}") from None


def _for_hydra(
    section: type[Composed], overrides: Sequence[str], folders: Sequence[Path]
) -> list[str]:
    """Overrides that Hydra takes although its files do not know everything.

    A plug-in's options have defaults in its class, so they need not stand in a file, and a plug-in
    of a user's package needs no file at all. What nobody knows is refused when it is checked.
    """
    choices = _choices(section)
    added = [f"hydra.searchpath=[{','.join(f'file://{f}' for f in folders[1:])}]"]
    added = added if len(folders) > 1 else []
    if "terms" in section.model_fields:
        terms = sorted({file.stem for f in folders for file in f.glob("terms/*.yaml")})
        added += [f"+terms@terms.{term}={term}" for term in terms]
    for override in overrides:
        key, equals, value = override.partition("=")
        group, dot, _ = key.lstrip("+").partition(".")
        if equals and dot and (group in choices or group == "terms"):
            added.append(f"++{key.lstrip('+')}={value}")
        elif (
            equals
            and key in choices
            and value.isidentifier()
            and not any((f / key / f"{value}.yaml").is_file() for f in folders)
        ):
            added += [f"~{key}", f"+{key}.name={value}"]
        else:
            added.append(override)
    return added


def _choices(section: type[Composed]) -> dict[str, type[Choice]]:
    """The choices among a configuration's sections, by their keys."""
    return {
        name: field.annotation
        for name, field in section.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Choice)
    }


def _at_home(override: str) -> str:
    """`key=~/path` as a shell would give it, had it looked behind the equals sign."""
    key, _, value = override.partition("=")
    return f"{key}={Path(value).expanduser()}" if value.startswith("~") else override


def _resumed(folder: Path, composed: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    file = folder / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"resume={folder}: no run folder (it holds no config.yaml)")
    saved = OmegaConf.create(migrated(OmegaConf.to_container(OmegaConf.load(file))))  # type: ignore[arg-type]
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


def _parsed(overrides: Iterable[str]) -> dict[str, Any]:
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
