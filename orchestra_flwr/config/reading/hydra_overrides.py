"""Overrides in Hydra's form, also of plug-ins and options that no file of `conf/` has."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from pydantic.fields import FieldInfo

from orchestra_flwr.config.choice import Choice
from orchestra_flwr.config.reading.overrides import parsed, value_text, values_of
from orchestra_flwr.config.reading.saved_config import read_config_file
from orchestra_flwr.config.run import Config
from orchestra_flwr.config.section import Composed, ConfigError, Section, section_keys
from orchestra_flwr.config.user_packages import check_named, packages_in
from orchestra_flwr.files import beside_package
from orchestra_flwr.plugins import PluginError, Room, conf_folders, must_be_one_of


def for_hydra(section: type[Composed], overrides: Sequence[Override]) -> list[Override]:
    """The overrides that compose a section's file.

    A plug-in's options have defaults in its class, so a file need not list them, and a plug-in of a
    user's package needs no file at all. Unknown options are refused when they are checked.

    Raises:
        ConfigError: a choice that does not exist, or a key of Hydra's own.
    """
    folders, packages = conf_folders_of(overrides), packages_of(overrides)
    quoted = ["'file://" + str(folder).replace("'", r"\'") + "'" for folder in folders[1:]]
    lines = [f"hydra.searchpath=[{','.join(quoted)}]"] if quoted else []
    if "terms" in section.model_fields:  # every term is configured, with weight 0 by default
        lines += [f"+terms@terms.{term}={term}" for term in _stems(folders, "terms")]
    lines += [f"++{key}=null" for key in section.undecided]
    rooms = rooms_of(section)
    latest = {override.key_or_group: override for override in overrides}
    for override in overrides:
        key = override.key_or_group
        if key not in rooms or override is latest[key]:  # of two choices the last one counts
            lines += _lines(section, override, folders, packages)
    return [parsed(line) for line in lines]


def conf_dir() -> Path:
    """The folder of Hydra's files: inside an installed package, else beside it."""
    return beside_package("conf")


def packages_of(overrides: Sequence[Override]) -> list[str]:
    """The users' packages that overrides name; a run to resume must have no others.

    Raises:
        ConfigError: it has others, or its configuration is damaged.
    """
    values = values_of(overrides)
    packages = [*packages_in(values.get("plugins"))]  # the section's check names an error
    file = Path(str(values.get("resume"))) / "config.yaml"
    if not values.get("resume") or not file.is_file():
        return packages
    saved = read_config_file(file).get("plugins") or []
    check_named(file, saved, packages)
    return packages or saved


def conf_folders_of(overrides: Sequence[Override]) -> list[Path]:
    """This package's folder of Hydra's files, and those of the users' packages."""
    try:
        return [conf_dir(), *conf_folders(packages_of(overrides))]
    except PluginError as error:
        raise ConfigError(f"plugins: {error}") from None


def rooms_of(section: type[Section]) -> dict[str, Room]:
    """The rooms of a configuration's choices, by their keys."""
    rooms = {
        name: getattr(field.annotation, "room", None)
        for name, field in section.model_fields.items()
    }
    return {name: room for name, room in rooms.items() if room is not None}


def options_of_chosen(
    section: type[Section], values: Mapping[str, Any], group: str
) -> Mapping[str, FieldInfo] | None:
    """The own options of the plug-in that composed values choose; None: there is no such one."""
    room, chosen = rooms_of(section).get(group), values.get(group)
    if room is None or not isinstance(chosen, Mapping):
        return None
    with suppress(PluginError):  # the run itself will say what is wrong
        plugin = room.get(str(chosen.get("name")), packages_in(values.get("plugins")))
        if plugin is not None:
            fields: Mapping[str, FieldInfo] = plugin.Settings.model_fields
            return fields
    return None


def _lines(
    section: type[Composed], override: Override, folders: Sequence[Path], packages: Sequence[str]
) -> list[str]:
    """The Hydra overrides, none to several, for one override."""
    key, text = override.key_or_group, override.input_line or ""
    group, dot, _ = key.partition(".")
    if group in (*section.referred, "hydra") or override.package is not None:
        hint = key == "hydra.run.dir" and "run_dir" in section.model_fields
        folder = "; run_dir= names a run's folder" if hint else ""
        raise ConfigError(f"{text.partition('=')[0]}: unknown key (see --help){folder}")
    rooms = rooms_of(section)
    free = group in rooms or group == "terms" or key in section_keys(section)
    if dot and free and not override.is_delete():  # a key that need not be in a file
        return [f"++{key}={value_text(override)}"]
    if dot or override.is_delete() or isinstance(override.value(), dict):
        return [text]
    if key == "terms":
        raise ConfigError(f"{text}: must be weights, such as terms.proximal.weight=0.1")
    files = _stems(folders, key)
    if key in rooms:
        return _chosen(section, override, files, packages)
    if key not in file_groups(section) or not files:
        return [text]
    if override.value() is None and key not in section.model_fields:
        return []  # preset=null
    if override.value() not in files:
        value = value_text(override)
        raise ConfigError(f"{key}={value}: {must_be_one_of(value, files)}")
    return [f"{key}={override.value()}"]


def _chosen(
    section: type[Composed], override: Override, files: Sequence[str], packages: Sequence[str]
) -> list[str]:
    """The choice of a plug-in: its file if it has one, else its name."""
    key, value = override.key_or_group, override.value()
    annotation = section.model_fields[key].annotation
    has_default = isinstance(annotation, type) and issubclass(annotation, Choice)
    if value in files:
        return [f"{key}={value}"]
    if value is None and not has_default:
        return []
    room = rooms_of(section)[key]
    try:
        plugin = room.get(str(value), packages)
    except PluginError as error:
        raise ConfigError(f"{key}={value_text(override)}: {error}") from None
    if plugin is None:
        names = [*dict.fromkeys([*room.found(packages), *files])]
        raise ConfigError(f"{key}={value_text(override)}: {must_be_one_of(str(value), names)}")
    return [*([f"~{key}"] if has_default else []), f"++{key}.name={value}"]


def file_groups(section: type[Composed]) -> list[str]:
    """The keys, other than choices, whose value is the name of a file."""
    groups = [name for name in section.model_fields if name not in rooms_of(section)]
    return [*groups, "preset"] if issubclass(section, Config) else []


def _stems(folders: Sequence[Path], group: str) -> list[str]:
    """The names of a group's files, without .yaml."""
    return sorted({file.stem for folder in folders for file in (folder / group).glob("*.yaml")})
