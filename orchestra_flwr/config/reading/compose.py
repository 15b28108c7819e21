"""Composes Hydra's files and a command line's overrides into a checked configuration."""

import copy
import functools
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from pydantic_core import to_jsonable_python

from orchestra_flwr.config.choice import Choice
from orchestra_flwr.config.reading.chosen_by_data import chosen_by_data
from orchestra_flwr.config.reading.hydra_overrides import (
    conf_dir,
    conf_folders_of,
    file_groups,
    for_hydra,
    options_of_chosen,
    rooms_of,
)
from orchestra_flwr.config.reading.key_descriptions import Described
from orchestra_flwr.config.reading.overrides import read_overrides
from orchestra_flwr.config.reading.resume import plain, resumed, touched
from orchestra_flwr.config.reading.user_files import no_yaml, user_files_named
from orchestra_flwr.config.run import Config
from orchestra_flwr.config.section import (
    Composed,
    ConfigError,
    parse,
    path_keys,
    section_keys,
    suggestion,
    why_unread,
)
from orchestra_flwr.config.user_packages import packages_in
from orchestra_flwr.plugins import PluginError

C = TypeVar("C", bound=Composed)
_ONE_AT_A_TIME = threading.Lock()  # what Hydra has initialised is global


def load_config(overrides: Sequence[str] = (), *, all_read: bool = False) -> Config:
    """A simulation's configuration: see :func:`load`."""
    return load(Config, overrides, all_read=all_read)


def load(section: type[C], overrides: Sequence[str] = (), *, all_read: bool = False) -> C:
    """Composes `conf/` with Hydra overrides such as ``data=cifar10 training.lr=0.01``.

    With `all_read`, overrides that the run does not read are refused. Sweeps do without it: their
    runs share overrides, and each reads different ones.

    With ``resume=<run folder>`` the configuration is that run's; overrides may repeat it or change
    where it runs (`RESUME_MAY_CHANGE`).

    Raises:
        ConfigError: an unknown key, a key that nothing reads, a wrong value, or a resume with
            another configuration.
    """
    said = request = _read(section, overrides)
    composed = _compose(section, request)
    values = _as_far_as_it_resolves(composed)
    if chosen := chosen_by_data(section, values, said):
        request = [*chosen, *said]
        composed = _compose(section, request)
        values = _as_far_as_it_resolves(composed)
    suggested = _suggested(section, values, request)
    if composed.get("resume"):
        return parse(section, resumed(section, composed, request, suggested))
    for key, value in suggested.items():
        OmegaConf.update(composed, key, value)
    with user_files_named(request):
        config = parse(section, _resolved(section, composed))
    if all_read:
        _refuse_unread(config, said)
    return config


def described(section: type[Composed], overrides: Sequence[str] = ()) -> Described:
    """The meaning of all keys, with their values under these overrides, unchecked.

    Raises:
        ConfigError: an override that does not compose.
    """
    request = _read(section, overrides)
    composed = _compose(section, request)
    for key, value in _suggested(section, _as_far_as_it_resolves(composed), request).items():
        OmegaConf.update(composed, key, value)
    folders = conf_folders_of(request)
    values = _with_options(section, _resolved(section, composed), folders)
    return Described(section, values, folders)


def _with_options(
    section: type[Composed], values: dict[str, Any], folders: Sequence[Path]
) -> dict[str, Any]:
    """Values with the defaults of chosen plug-ins that have no file in `conf/`: users' own."""
    complete = dict(values)
    for group in rooms_of(section):
        chosen = values.get(group)
        if not isinstance(chosen, dict):
            continue
        file = Path(group, f"{chosen.get('name')}.yaml")
        if any((folder / file).is_file() for folder in folders):
            continue
        shared = getattr(section.model_fields[group].annotation, "model_fields", {})
        fields = {**shared, **(options_of_chosen(section, values, group) or {})}
        defaults = {
            key: to_jsonable_python(field.get_default(call_default_factory=True), fallback=str)
            for key, field in fields.items()
            if not field.is_required()
        }
        complete[group] = {"name": None, **defaults, **chosen}
    return complete


def without_unread(config: Composed, overrides: Sequence[str]) -> list[str]:
    """The overrides, as on a command line, that have an effect; for overrides that runs share."""
    unread, paths = config.unread(), set(path_keys(type(config)))
    keys = [override.key_or_group for override in read_overrides(overrides, paths=paths)]
    return [text for text, key in zip(overrides, keys, strict=True) if not why_unread(key, unread)]


def without_options_of_others(overrides: Sequence[str], shared: Sequence[str]) -> list[str]:
    """The overrides of a run without those of `shared` that only plug-ins not chosen have.

    Of an option that no plug-in has, loading says what is wrong.

    Raises:
        ConfigError: an override that does not compose.
    """
    read = _read(Config, overrides)
    values = _as_far_as_it_resolves(_compose(Config, read))
    rooms, packages = rooms_of(Config), packages_in(values.get("plugins"))

    def is_of_another(key: str) -> bool:
        group, _, option = key.partition(".")
        options = options_of_chosen(Config, values, group)
        if options is None or option in ("", *options, *_common_options(group)):
            return False
        with suppress(PluginError):
            others = rooms[group].found(packages).values()
            return any(option in other.Settings.model_fields for other in others)
        return False

    return [
        text
        for text, override in zip(overrides, read, strict=True)
        if text not in shared or not is_of_another(override.key_or_group)
    ]


def _common_options(group: str) -> Iterator[str]:
    """The options that all plug-ins of a choice have."""
    return (key.partition(".")[2] for key in section_keys(Config) if key.startswith(f"{group}."))


def _refuse_unread(config: Composed, overrides: Sequence[Override]) -> None:
    """Refuses overrides that have no effect in a run with this configuration."""
    unread = config.unread()
    for override in overrides:
        key = override.key_or_group
        why = None if override.is_delete() else why_unread(key, unread)
        if why:
            raise ConfigError(f"{key}: is not read {why}; leave it out")


def _read(section: type[Composed], overrides: Sequence[str]) -> list[Override]:
    return read_overrides(overrides, rooms_of(section), set(path_keys(section)))


def _compose(section: type[Composed], overrides: Sequence[Override]) -> DictConfig:
    """Has Hydra merge the chosen files, and then sets the values as Hydra would."""
    folders, lines = conf_folders_of(overrides), for_hydra(section, overrides)
    choices = [line for line in lines if _chooses_files(line, folders)]
    # Files of users' packages are read each time: they may be edited in a notebook.
    merge = _merged_files.__wrapped__ if folders[1:] else _merged_files
    try:
        composed = copy.deepcopy(merge(section, *(str(line.input_line) for line in choices)))
        OmegaConf.set_struct(composed, True)  # a key without + must exist
        for line in (line for line in lines if line not in choices):
            _set(composed, line)
        OmegaConf.set_struct(composed, None)
    # The ValueError: a name below a list, as in plugins.a=1.
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(_describe_hydra(error, section, overrides)) from None
    except yaml.YAMLError as error:  # in a file of a user's package
        raise ConfigError(no_yaml(error)) from None
    return composed


@functools.lru_cache(maxsize=512)  # Hydra takes 0.15 s, and rows of an experiment share files
def _merged_files(section: type[Composed], *choices: str) -> DictConfig:
    with _ONE_AT_A_TIME, initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return compose(section.file, [*choices])


def _chooses_files(line: Override, folders: Sequence[Path]) -> bool:
    """Whether an override decides which files are merged, rather than sets a value."""
    key = line.key_or_group
    is_group = any((folder / key).is_dir() for folder in folders)
    return key.startswith("hydra.") or (is_group and not isinstance(line.value(), dict))


def _set(composed: DictConfig, line: Override) -> None:
    """Sets or deletes a value; an unknown key is an error."""
    key, value = line.key_or_group, line.value()
    if not line.is_delete():
        OmegaConf.update(composed, key, value, force_add=line.is_add() or line.is_force_add())
        return
    current = OmegaConf.select(composed, key)
    if current is None or value not in (None, current):
        raise ValueError(f"no {key}")
    section, _, name = key.rpartition(".")
    with open_dict(composed):
        del (OmegaConf.select(composed, section) if section else composed)[name]


def _suggested(
    section: type[Composed], values: dict[str, Any], overrides: Sequence[Override]
) -> dict[str, Any]:
    """What choices suggest for keys that neither an override nor a preset sets."""
    suggested = section.suggested(values)
    if not suggested:
        return {}
    keys = {*touched(overrides)}
    for override in overrides:  # model={name:timm,...}
        value = override.value()
        names = value if isinstance(value, dict) else ()
        keys |= {f"{override.key_or_group}.{name}" for name in names}
    return {key: value for key, value in suggested.items() if key not in keys}


def _resolved(section: type[Composed], composed: DictConfig) -> dict[str, Any]:
    """The composed values as plain ones."""
    try:
        return {key: plain(composed[key]) for key in _keys(section, composed)}
    except OmegaConfBaseException as error:
        partly = _as_far_as_it_resolves(composed)
        partly = {key: partly[key] for key in _keys(section, composed)}
        # A wrong name or value may be the reason, and makes a better message.
        _check_names(section, partly)
        try:
            parse(section, partly)
        except ConfigError as reason:
            if "${" not in str(reason):
                raise
        missing = re.search(r"Interpolation key '([^']+)'", str(error))
        nowhere = f", there is no {missing[1]}" if missing else ""
        key = getattr(error, "full_key", "") or "a key"
        raise ConfigError(f"{key}: must be given{nowhere}") from None


def _as_far_as_it_resolves(node: DictConfig) -> dict[str, Any]:
    """The composed values as plain ones; references that cannot be resolved stay as written."""
    with suppress(OmegaConfBaseException):
        resolved: dict[str, Any] = plain(node)
        return resolved
    written: Any = OmegaConf.to_container(node)
    values: dict[str, Any] = {}
    for key in written:
        try:
            value = node[key]
        except OmegaConfBaseException:
            value = written[key]
        if isinstance(value, DictConfig):
            values[key] = _as_far_as_it_resolves(value)
        else:
            values[key] = written[key] if isinstance(value, ListConfig) else value
    return values


def _keys(section: type[Composed], composed: DictConfig) -> list[str]:
    """The keys of a configuration, without those that only other values refer to."""
    return [str(key) for key in composed if key not in section.referred]


def _check_names(section: type[Composed], values: dict[str, Any]) -> None:
    """Refuses a choice for which there is no plug-in."""
    for key in rooms_of(section):
        annotation = section.model_fields[key].annotation
        if isinstance(annotation, type) and issubclass(annotation, Choice) and key in values:
            choice = parse(annotation, values[key], key)
            choice.look_in(packages_in(values.get("plugins")))
            _ = choice.plugin


def _describe_hydra(
    error: Exception, section: type[Composed], overrides: Sequence[Override]
) -> str:
    """Hydra's error in the terms of the command line."""
    text = " ".join(str(error).split())
    allowed = _all_keys(section) if overrides else []
    offered = [key for key in allowed if not section.is_foreign(key)]
    for override in overrides:
        key, line = override.key_or_group, override.input_line
        if override.is_delete() and (key not in allowed or key in text):
            return f"{line}: there is nothing to delete"
        is_group = key in file_groups(section) or key.partition(".")[0] in rooms_of(section)
        if key not in allowed and not is_group:  # a preset is a group, and no key
            return f"{key}: unknown key{suggestion(key, offered)}"
        below = [name for name in allowed if name.startswith(f"{key}.")]
        if below and f"override '{key}'" in text:
            return f"{line}: must be given by its keys, such as {below[0]}"
    if isinstance(error, ConfigAttributeError | ConfigKeyError) and error.full_key:
        return f"{error.full_key}: unknown key{suggestion(error.full_key, offered)}"
    return text


def _all_keys(section: type[Composed]) -> list[str]:
    """The full names of all keys, including those that occur only in files."""

    def names(values: dict[str, Any], prefix: str) -> Iterator[str]:
        for name, value in values.items():
            yield prefix + name
            if isinstance(value, dict):
                yield from names(value, f"{prefix}{name}.")

    composed = _compose(section, ())
    values: Any = OmegaConf.to_container(composed)
    values = {key: values[key] for key in _keys(section, composed)}
    return list(dict.fromkeys([*section_keys(section), *names(values, "")]))
