"""Composes Hydra's files and a command line's overrides into a checked configuration."""

from __future__ import annotations

import functools
import os
import pickle
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestra_flwr.config.choice import Choice
from orchestra_flwr.config.key_descriptions import Described
from orchestra_flwr.config.overrides import parsed, read_overrides
from orchestra_flwr.config.resume import resumed
from orchestra_flwr.config.run import Config
from orchestra_flwr.config.section import (
    Composed,
    ConfigError,
    Section,
    known_keys,
    parse,
    path_keys,
    suggestion,
)
from orchestra_flwr.config.sections import are_packages
from orchestra_flwr.config.translate import (
    conf_dir,
    conf_folders_of,
    file_groups,
    for_hydra,
    rooms_of,
)
from orchestra_flwr.config.unread import refuse_unread

C = TypeVar("C", bound=Composed)
_ONE_AT_A_TIME = threading.Lock()  # what Hydra has initialised is global
PACKAGE = re.compile(r"^\s*#\s*@package\s+(\S+)", re.MULTILINE)  # as Hydra reads them
DEFAULTS = re.compile(r"^defaults\s*:", re.MULTILINE)


def load_config(overrides: Sequence[str] = (), *, all_read: bool = False) -> Config:
    """A simulation's configuration: see :func:`load`."""
    return load(Config, overrides, all_read=all_read)


def load(section: type[C], overrides: Sequence[str] = (), *, all_read: bool = False) -> C:
    """Composes `conf/` with Hydra overrides such as ``data=cifar10 training.lr=0.01``.

    Args:
        section: the kind of configuration.
        overrides: as on a command line.
        all_read: whether overrides that the run does not read are refused, as those of one command
            are; several runs may share others.

    With ``resume=<run folder>`` the configuration is the run's own; overrides may only repeat it
    or change where it runs (`RESUME_MAY_CHANGE`).

    Raises:
        ConfigError: an unknown key, a key that nothing reads, a wrong value, or a resume with
            another configuration.
    """
    request = _read(section, overrides)
    composed = _compose(section, request)
    if composed.get("resume"):
        return parse(section, resumed(section, composed, request))
    config = parse(section, _resolved(section, composed))
    if all_read:
        refuse_unread(config, request)
    return config


def config_to_yaml(config: Section) -> str:
    """The whole configuration as YAML, as it stands in a run folder."""
    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump()))


def described(section: type[Composed], overrides: Sequence[str] = ()) -> Described:
    """What all keys mean, with the values that they have with these overrides, unchecked.

    Raises:
        ConfigError: an override that does not compose.
    """
    request = _read(section, overrides)
    values = _resolved(section, _compose(section, request))
    return Described(section, values, conf_folders_of(request))


def _read(section: type[Composed], overrides: Sequence[str]) -> list[Override]:
    return read_overrides(overrides, rooms_of(section), set(path_keys(section)))


def _compose(section: type[Composed], overrides: Sequence[Override]) -> DictConfig:
    lines = for_hydra(section, overrides)
    try:
        return _quickly(section, lines) or _by_hydra(section, lines)
    # The ValueError: a name below a list, as in plugins.a=1.
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(_describe_hydra(error, section, overrides)) from None


def _by_hydra(section: type[Composed], lines: Sequence[str]) -> DictConfig:
    with _ONE_AT_A_TIME, initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        composed = compose(section.file, [*lines])
    return OmegaConf.masked_copy(composed, [str(k) for k in composed if k not in section.unused])


def _quickly(section: type[Composed], lines: Sequence[str]) -> DictConfig | None:
    """What Hydra composes, in a tenth of its time once it has composed these choices of files.

    Values do not decide which files are chosen, and Hydra sets them after it has merged the files.

    Returns:
        None where only Hydra itself will do: it words all errors.
    """
    folder, choices, values = conf_dir(), [], []
    for line in lines:
        override = parsed(line)
        if _chooses_file(override, folder):
            choices.append(line)
        elif _sets_value(override):
            values.append(override)
        else:
            return None
    try:
        composed: DictConfig = pickle.loads(  # noqa: S301  (what this process has pickled)
            _pickled(section, tuple(choices), folder, _state_of(folder))
        )
        OmegaConf.set_struct(composed, True)  # as in Hydra: keys without + must be there
        for value in values:
            OmegaConf.update(
                composed, value.key_or_group, value.value(), force_add=value.is_force_add()
            )
        OmegaConf.set_struct(composed, None)
    except (HydraException, OmegaConfBaseException):
        return None
    return composed


@functools.lru_cache(maxsize=256)  # some 10 KB each
def _pickled(
    section: type[Composed], choices: Sequence[str], folder: Path, state: Sequence[Any]
) -> bytes:
    """Only with these choices composed; unpickled sooner than copied."""
    files = _independent(section, choices, folder)
    if not files:
        return pickle.dumps(_by_hydra(section, choices))
    others = tuple(line for line in choices if parsed(line).key_or_group not in files)
    composed = pickle.loads(_pickled(section, others, folder, state))  # noqa: S301  (as above)
    for group, file in files.items():
        composed[group] = OmegaConf.load(file)
    return pickle.dumps(composed)


def _independent(section: type[Composed], choices: Sequence[str], folder: Path) -> dict[str, Path]:
    """The chosen files, by group, that can take the place of the group's default without Hydra.

    Hydra takes a third of a second for each other choice of files. The files of these groups
    neither choose nor change others, and no other file that may be chosen changes their values.
    """
    first = (folder / f"{section.file}.yaml").read_text()
    if "\n  - config\n" in first:
        first += (folder / "config.yaml").read_text()
    defaults = dict(re.findall(r"^  - (\w+): (\w+)", first, re.MULTILINE))
    files: dict[str, Path] = {}
    changed = {*_keys(first)}
    for override in map(parsed, choices):
        group = override.key_or_group
        file = folder / group / f"{override.value()}.yaml"
        if override.type is OverrideType.CHANGE and group in defaults and file.is_file():
            files[group] = file
        else:
            changed.add(group)
            defaults[group] = ""
    for group, default in defaults.items():
        texts = [file.read_text() for file in (folder / group).glob("*.yaml")]
        if any(PACKAGE.search(text) or DEFAULTS.search(text) for text in texts):
            changed.add(group)
        if default != "null" or group in files:
            for text in texts:
                package = PACKAGE.search(text)
                if package and package[1] != "_global_":
                    return {}  # for Hydra to say what it changes
                changed.update(_keys(text) if package else ())
    return {group: file for group, file in files.items() if group not in changed}


def _keys(text: str) -> list[str]:
    """The keys at the top of a file of YAML."""
    return re.findall(r"^(\w+):", text, re.MULTILINE)


def _state_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Differs whenever a file of the folder was changed."""
    found = []
    for entry in os.scandir(folder):
        status = entry.stat()
        found.append((entry.path, status.st_mtime_ns, status.st_size))
        found += _state_of(Path(entry.path)) if entry.is_dir() else ()
    return tuple(found)


def _chooses_file(override: Override, folder: Path) -> bool:
    is_group = (folder / override.key_or_group).is_dir() and override.key_or_group.isidentifier()
    return is_group and not isinstance(override.value(), dict)


def _sets_value(override: Override) -> bool:
    """Whether it does so in the way that `OmegaConf.update` does."""
    plain = override.type in (OverrideType.CHANGE, OverrideType.FORCE_ADD)
    names = override.key_or_group.split(".")
    return (
        plain
        and override.package is None
        and not override.is_sweep_override()
        and all(name.isidentifier() for name in names)
        and names[0] != "hydra"
        and "${" not in str(override.input_line)
    )


def _resolved(section: type[Composed], composed: DictConfig) -> dict[str, Any]:
    """The composed values as plain ones.

    Raises:
        ConfigError: a value refers to one that is not there.
    """
    try:
        return _without_referred(section, OmegaConf.to_container(composed, resolve=True))
    except OmegaConfBaseException as error:
        unresolved = _without_referred(section, _as_far_as_it_resolves(composed))
        missing = re.search(r"Interpolation key '([^']+)'", str(error))
        # A wrong name or value may be the reason: it is told first.
        _check_names(section, unresolved)
        try:
            parse(section, unresolved)
        except ConfigError as reason:
            if "${" not in str(reason):
                raise
        nowhere = f", there is no {missing[1]}" if missing else ""
        key = getattr(error, "full_key", "") or "a key"
        raise ConfigError(f"{key}: must be given{nowhere}") from None


def _as_far_as_it_resolves(node: DictConfig) -> dict[str, Any]:
    """The composed values as plain ones; those that cannot be resolved stay as they are written."""
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


def _without_referred(section: type[Composed], values: Any) -> dict[str, Any]:
    """The values of a configuration, without what only its other values refer to."""
    return {key: value for key, value in values.items() if key not in section.referred}


def _check_names(section: type[Composed], values: dict[str, Any]) -> None:
    """Refuses a choice of which there is no plug-in."""
    packages = values.get("plugins") or ()
    for key in rooms_of(section):
        annotation = section.model_fields[key].annotation
        if isinstance(annotation, type) and issubclass(annotation, Choice) and key in values:
            choice = parse(annotation, values[key], key)
            choice.look_in(tuple(packages) if are_packages(packages) else ())
            _ = choice.plugin


def _describe_hydra(
    error: Exception, section: type[Composed], overrides: Sequence[Override]
) -> str:
    """Hydra's error in words of the command line."""
    text = _one_line(error)
    known = _known(section) if overrides else []
    for override in overrides:
        key, line = override.key_or_group, override.input_line
        if override.is_delete() and (key not in known or key in text):
            return f"{line}: there is nothing to delete"
        is_group = key in file_groups(section) or key.partition(".")[0] in rooms_of(section)
        if key not in known and not is_group:  # a preset is a group, and no key
            return f"{key}: unknown key{suggestion(key, known)}"
        below = [name for name in known if name.startswith(f"{key}.")]
        if below and f"override '{key}'" in text:
            return f"{line}: must be given by its keys, such as {below[0]}"
    return text


def _known(section: type[Composed]) -> list[str]:
    """The full names of all keys, also of those that stand in files alone."""

    def names(values: dict[str, Any], prefix: str) -> Iterator[str]:
        for name, value in values.items():
            yield prefix + name
            if isinstance(value, dict):
                yield from names(value, f"{prefix}{name}.")

    composed: Any = OmegaConf.to_container(_compose(section, ()))
    return list(dict.fromkeys([*known_keys(section), *names(composed, "")]))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
