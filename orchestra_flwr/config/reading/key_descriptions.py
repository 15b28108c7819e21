"""The meaning and the possible values of every key, from the comments of `conf/`, for --help."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from orchestra_flwr.config.reading.user_files import no_yaml
from orchestra_flwr.config.run import Config
from orchestra_flwr.config.section import Composed, ConfigError, Section, suggestion
from orchestra_flwr.config.user_packages import packages_in

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast
COMMENT = re.compile(r"\s# ?(.*)$")
SENTENCE = re.compile(r"^.*?[.!?](?=\s|$)")
GLOBAL = "@package _global_"
COLUMN = 34  # where descriptions begin, if the value leaves room
HIDDEN = ("paper",)  # only other values of conf/ refer to it
FIRST = ("small", "default")  # the files of a group that its others build on


@dataclass(frozen=True)
class Described:
    """A composed configuration with the meaning of its keys."""

    section: type[Composed]
    values: Mapping[str, Any]  # resolved
    folders: Sequence[Path]  # those of `conf/`, a user's packages' as well

    def every_key(self) -> str:
        """All keys as YAML, each with its value and, as a comment, its meaning."""
        lines = list(self._lines(self.values, ()))
        if presets := self._choices("preset"):  # which have no value of their own
            text = self._of_section(("preset",)).rstrip(".")
            lines += ["", f"# {text} (preset={', '.join(presets)}): --help preset"]
        return "\n".join(lines) + "\n"

    def group(self, name: str) -> str:
        """A group's choices, and its keys with their values.

        Raises:
            ConfigError: there is no such group or section.
        """
        if name not in self._groups:
            hint = suggestion(name, self._groups).replace(" (see --help)", "")
            allowed = f"must be one of {', '.join(self._groups)}{hint}"
            none = "there are no groups of keys; --help shows all"
            raise ConfigError(f"--help {name}: {allowed if self._groups else none}")
        text, choices = self._of_section((name,)), self._choices(name)
        if choices:
            width = max(map(len, choices))
            lines = [f"  {name}={choice:<{width}}  {choices[choice]}" for choice in choices]
            text = "\n".join([text, "", *map(str.rstrip, lines)])
        if name in self.values:
            text += f"\n\n{name}:\n" + "\n".join(self._lines(self.values[name], (name,)))
        return text.lstrip("\n") + "\n"

    def words(self) -> list[str]:
        """All beginnings of arguments: "seed=" or, for keys with few values, "key=value".

        Keys of plug-ins that are not chosen are among them.
        """
        values = {key: list[str]() for key in _leaves(self.values)}
        packages = packages_in(self.values.get("plugins"))
        for key, choices in _settable(self.section, "", packages):
            values[key] = sorted({*values.get(key, ()), *choices})
        groups = {group: list(self._choices(group)) for group in self._groups if group != "terms"}
        values |= {group: choices for group, choices in groups.items() if choices}
        offered = (key for key in sorted(values) if not self.section.is_foreign(key))
        return [f"{key}={value}" for key in offered for value in values[key] or [""]]

    @property
    def _groups(self) -> list[str]:
        """All keys of sections, and `preset`."""
        sections = [key for key, value in self.values.items() if isinstance(value, Mapping)]
        return [*sections, "preset"] if self._choices("preset") else sections

    def _lines(self, values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
        indent, follows_section = "  " * len(path), False
        for key, value in values.items():
            if key in HIDDEN:
                continue
            full = (*path, str(key))
            is_section = isinstance(value, Mapping) and bool(value)
            if not path and (is_section or follows_section):
                yield ""
            follows_section = is_section
            if not is_section:
                line, text = f"{indent}{key}: {_written(value)}", self._meaning(full)
                yield f"{line:<{COLUMN}}  # {text}" if text else line
                continue
            text, choices = self._of_section(full), ", ".join(self._choices(key))
            if choices and not path and key != "terms":
                text = f"{text.rstrip('.')} ({key}={choices})"
            if text:
                yield f"{indent}# {text}"
            yield f"{indent}{key}:"
            yield from self._lines(value, full)

    def _meaning(self, path: Sequence[str]) -> str:
        """One line about a key; "" without a comment."""
        header = self._header_of_choice(path[:-1]) if path[-1] == "name" else ""
        return header or self._comments.get(".".join(path), "")

    def _of_section(self, path: tuple[str, ...]) -> str:
        """One line about a section."""
        if len(path) > 1:
            return self._header_of_choice(path) or self._meaning(path)
        text = self._comments.get(path[0]) or _first_line(_annotation(self.section, path[0]))
        return text[:1].upper() + text[1:]

    def _header_of_choice(self, path: Sequence[str]) -> str:
        """The header of a choice's file: a term's own, else that of the chosen plug-in."""
        if not path:
            return ""
        chosen = path[1] if len(path) > 1 else self._chosen(path[0])
        return self._choices(path[0]).get(str(chosen), "")

    def _choices(self, group: str) -> dict[str, str]:
        """The files of a group, each with its first sentence."""
        files = {file.stem: file for file in self._files(group)}
        return {name: _sentence(read_comments(files[name])[0]) for name in sorted(files)}

    def _chosen(self, group: str) -> Any:
        values = self.values.get(group)
        return values.get("name") if isinstance(values, Mapping) else None

    def _files(self, group: str) -> list[Path]:
        is_group = group in (*self.section.model_fields, "preset")
        if not (issubclass(self.section, Config) and is_group):
            is_group = hasattr(_annotation(self.section, group), "room")
        return [f for folder in self.folders for f in (folder / group).glob("*.yaml") if is_group]

    @cached_property
    def _comments(self) -> dict[str, str]:
        """The comments of all keys, by their full names; those of the chosen files win."""
        names = [self.section.file, *(["config"] if issubclass(self.section, Config) else [])]
        files = [(self.folders[0] / f"{name}.yaml", "") for name in names]
        for group in self.values:
            first = (self._chosen(group), *FIRST)
            ordered = sorted(self._files(group), key=lambda f: (f.stem not in first, f.stem))
            files += [(f, f"terms.{f.stem}" if group == "terms" else group) for f in ordered]
        comments: dict[str, str] = {}
        for file, section in files:
            for key, text in read_comments(file, section)[1].items():
                if key.startswith(section) and not self._is_of_another(key, section, file):
                    comments.setdefault(key, text)
        return comments

    def _is_of_another(self, key: str, section: str, file: Path) -> bool:
        """Whether a key is an option or the name of another plug-in than the chosen one, a user's.

        An option of the same name may mean something else there.
        """
        group, chosen = _annotation(self.section, section), self._chosen(section)
        if not hasattr(group, "room") or (self.folders[0] / section / f"{chosen}.yaml").is_file():
            return False
        option = key.removeprefix(f"{section}.").partition(".")[0]
        return file.stem != chosen and option not in group.model_fields.keys() - {"name"}


def read_comments(file: Path, section: str = "") -> tuple[str, dict[str, str]]:
    """The comments of a file of `conf/`: the one above its first key, and those behind keys.

    The first is joined into one line. The others are listed by the full names of their keys, which
    are in `section` unless the file is global.

    Raises:
        ConfigError: it is no YAML in UTF-8.
    """
    try:
        with file.open("rb") as stream:
            keys = yaml.compose(stream, LOADER)
    except yaml.YAMLError as error:
        raise ConfigError(no_yaml(error)) from None
    content = file.read_text(encoding="utf-8")
    lines = content.splitlines()
    above = takewhile(lambda line: line.startswith("#"), lines)
    header = " ".join(line.lstrip("# ") for line in above if GLOBAL not in line)
    names = [] if GLOBAL in content or not section else [section]
    comments = {}
    for key, number in _keys(keys, names):
        if behind := COMMENT.search(lines[number]):
            comments[key.removeprefix("defaults.")] = behind[1]
    return header, comments


def _keys(node: yaml.Node | None, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """The full names of the keys below a node of YAML, and the numbers of their lines."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _keys(item, names)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield ".".join([*names, key.value]), key.start_mark.line
            yield from _keys(value, [*names, key.value])


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The full names of all keys that have a value."""
    for key, value in values.items():
        if key in HIDDEN or (prefix and key == "name"):
            continue
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _settable(
    section: type[Section], prefix: str, packages: tuple[str, ...]
) -> Iterator[tuple[str, list[str]]]:
    """All keys of a section and its plug-ins, with their values if these are few."""
    for name, field in section.model_fields.items():
        below = field.annotation
        if name in HIDDEN or (prefix and name == "name"):
            continue
        if not (isinstance(below, type) and issubclass(below, Section)):
            yield f"{prefix}{name}", _few_values(below)
            continue
        yield from _settable(below, f"{prefix}{name}.", packages)
        plugins = below.room.found(packages) if hasattr(below, "room") else {}
        if prefix and plugins:
            yield f"{prefix}{name}", list(plugins)
        for plugin in plugins.values():
            yield from _settable(plugin.Settings, f"{prefix}{name}.", packages)


def _few_values(annotation: Any) -> list[str]:
    """The values of a type, as on a command line, if it has few; else none."""
    if get_origin(annotation) is Literal:
        return [_written(value) for value in get_args(annotation)]
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) in (Union, UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        values = _few_values(parts[0]) if len(parts) == 1 else []
        return [*values, "null"] if values else []
    return []


def _annotation(section: type[Section], key: str) -> Any:
    """The type of a key's value; None without such a key."""
    field = section.model_fields.get(key)
    return field and field.annotation


def _first_line(annotation: Any) -> str:
    is_section = isinstance(annotation, type) and issubclass(annotation, Section)
    return (inspect.getdoc(annotation) or "").partition("\n")[0] if is_section else ""


def _sentence(text: str) -> str:
    match = SENTENCE.match(text)
    return match[0] if match else text


def _written(value: Any) -> str:
    """A value in one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.removesuffix("...\n").strip()
