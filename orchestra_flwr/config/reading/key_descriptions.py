"""What every key means and what it can be: from the comments of `conf/`, for --help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from orchestra_flwr.config.run import Config
from orchestra_flwr.config.section import Composed, ConfigError, Section, suggestion

KEY = re.compile(r"^(?P<indent> *)(?:- (?:override /)?)?(?P<key>[\w.]+):(?P<rest>.*)$")
COMMENT = re.compile(r"(?:^|\s)# ?(?P<text>.*)$")
SENTENCE = re.compile(r"^.*?[.!?](?=\s|$)")
GLOBAL = "@package _global_"
COLUMN = 34  # where descriptions begin, if the value leaves room
HIDDEN = ("paper",)  # only other values of conf/ refer to it
FIRST = ("small", "default")  # the files of a group that its others build on


@dataclass
class Comments:
    """The comments of a file of `conf/`.

    Attributes:
        header: what stands above the first key.
        keys: text by full key, as the file has it.
        is_global: whether its keys begin with the name of their section.
    """

    header: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    is_global: bool = False


@dataclass(frozen=True)
class Described:
    """A composed configuration with what is known of its keys.

    Attributes:
        section: the kind of configuration.
        values: its values, resolved.
        folders: those of `conf/`, a user's packages' as well.
    """

    section: type[Composed]
    values: Mapping[str, Any]
    folders: Sequence[Path]

    def every_key(self) -> str:
        """All keys as YAML, each with its value and, as a comment, its meaning."""
        lines = list(self._lines(self.values, ()))
        if presets := self._presets():  # which have no value of their own
            text = self._of_section(("preset",)).rstrip(".")
            lines += ["", f"# {text} (preset={', '.join(presets)}): --help preset"]
        return "\n".join(lines) + "\n"

    def group(self, name: str) -> str:
        """What a group's choices are, and its keys with the values that they have.

        Raises:
            ConfigError: there is no such group or section.
        """
        choices = self._choices(name)
        if not choices and not isinstance(self.values.get(name), dict):
            known = [key for key, value in self.values.items() if isinstance(value, dict)]
            known += ["preset"] if self._presets() else []
            found = suggestion(name, known).replace(" (see --help)", "")
            if not known:
                raise ConfigError(f"--help {name}: there are no groups of keys; --help shows all")
            raise ConfigError(f"--help {name}: must be one of {', '.join(known)}{found}")
        text = self._of_section((name,))
        if choices:
            width = max(map(len, choices))
            lines = [f"  {name}={each:<{width}}  {choices[each]}".rstrip() for each in choices]
            text = "\n".join([text, "", *lines])
        if name in self.values:
            text += f"\n\n{name}:\n" + "\n".join(self._lines(self.values[name], (name,)))
        return text.lstrip("\n") + "\n"

    def words(self) -> list[str]:
        """All that can begin an argument: "seed=" and, of choices, "method=simclr"."""
        groups = {key for key, value in self.values.items() if isinstance(value, Mapping)}
        groups |= {"preset"} if self._presets() else set()
        chosen = [
            f"{name}={each}" for name in sorted(groups - {"terms"}) for each in self._choices(name)
        ]
        return [*chosen, *(f"{key}=" for key in _leaves(self.values))]

    def meaning(self, path: Sequence[str]) -> str:
        """One line about a key; "" where nobody says anything."""
        if len(path) > 1 and path[-1] == "name" and (header := self._header_of_choice(path)):
            return header
        key, below = ".".join(path), ".".join(path[1:])
        for comments in self._base:
            if key in comments.keys:
                return comments.keys[key]
        for comments in self._files(path):
            if text := comments.keys.get(key if comments.is_global else below):
                return text
        return self._of_field(path)

    def _presets(self) -> Mapping[str, str]:
        return self._choices("preset") if issubclass(self.section, Config) else {}

    def _lines(self, values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
        indent, above = "  " * len(path), False
        for key, value in values.items():
            own = (*path, str(key))
            if key in HIDDEN:
                continue
            is_section = isinstance(value, Mapping) and bool(value)
            if not path and (is_section or above):
                yield ""
            above = is_section
            if is_section:
                text, choices = self._of_section(own), ", ".join(self._choices(key))
                if choices and not path and key != "terms":
                    text = f"{text.rstrip('.')} ({key}={choices})"
                if text:
                    yield f"{indent}# {text}"
                yield f"{indent}{key}:"
                yield from self._lines(value, own)
            else:
                line = f"{indent}{key}: {_written(value)}"
                text = self.meaning(own)
                yield f"{line:<{COLUMN}}  # {text}" if text else line

    def _of_section(self, path: tuple[str, ...]) -> str:
        """One line about a section."""
        if len(path) > 1:
            return self._header_of_choice((*path, "name")) or self.meaning(path)
        named = [c.keys[path[0]] for c in self._base if path[0] in c.keys]
        text = named[0] if named else _first_line(_annotation(self.section, path))
        return text[:1].upper() + text[1:]

    def _header_of_choice(self, path: Sequence[str]) -> str:
        """What the file of a choice says above its keys."""
        group, *between = path[:-1]
        chosen = between[0] if between else self._chosen(group)
        found = [f for f in self._group_files(group) if f.stem == chosen]
        return _sentence(read_comments(found[0]).header) if found else ""

    def _of_field(self, path: Sequence[str]) -> str:
        """The description of a field, or the first line about its class."""
        section = _annotation(self.section, path[:-1])
        if isinstance(section, type) and issubclass(section, Section):
            known = section.model_fields.get(path[-1])
            return (known.description if known else None) or ""
        return ""

    def _choices(self, group: str) -> dict[str, str]:
        """The files of a group, each with its first sentence."""
        files = {file.stem: file for file in self._group_files(group)}
        return {name: _sentence(read_comments(files[name]).header) for name in sorted(files)}

    def _chosen(self, group: str) -> str | None:
        values = self.values.get(group)
        return str(values.get("name")) if isinstance(values, Mapping) else None

    def _files(self, path: Sequence[str]) -> Iterator[Comments]:
        """The comments of a group's files, those of the chosen one first."""
        if path[0] == "terms":
            for file in self._group_files("terms"):
                if file.stem == path[1]:
                    found = read_comments(file)
                    yield Comments(keys={f"{path[1]}.{k}": v for k, v in found.keys.items()})
            return
        first = (self._chosen(path[0]), *FIRST)
        files = sorted(self._group_files(path[0]), key=lambda f: (f.stem not in first, f.stem))
        yield from map(read_comments, files)

    def _group_files(self, group: str) -> list[Path]:
        has_groups = issubclass(self.section, Config)
        is_group = has_groups and group in (*self.section.model_fields, "preset")
        if not is_group and not hasattr(_annotation(self.section, (group,)), "room"):
            return []
        return [file for folder in self.folders for file in (folder / group).glob("*.yaml")]

    @cached_property
    def _base(self) -> list[Comments]:
        """Of the file that is composed, and of the one that it builds on."""
        names = [self.section.file, *(["config"] if issubclass(self.section, Config) else [])]
        files = [self.folders[0] / f"{name}.yaml" for name in dict.fromkeys(names)]
        return [read_comments(file) for file in files]


def read_comments(file: Path) -> Comments:
    """The comments of a file: behind a key, or above it."""
    found = Comments()
    above: list[str] = []
    stack: list[tuple[int, str]] = []  # indents and keys of the sections around a line
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            found.is_global |= GLOBAL in line
            above += [] if GLOBAL in line else [line.lstrip("# ")]
            continue
        if not (match := KEY.match(line)):
            above = above if line.strip().startswith("#") else []
            continue
        if not found.keys and not stack and above:
            found.header, above = " ".join(above), []
        indent = len(match["indent"])
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, match["key"]))
        key = ".".join(name for _, name in stack).removeprefix("defaults.")
        behind = COMMENT.search(match["rest"])
        text = behind["text"] if behind else " ".join(above)
        if text:
            found.keys[key] = text
        above = []
    return found


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The full names of all keys that have a value."""
    for key, value in values.items():
        if key in HIDDEN or (prefix and key == "name"):
            continue
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _annotation(section: type[Section], path: Sequence[str]) -> Any:
    """The type of the value that stands at a path."""
    annotation: Any = section
    for name in path:
        fields = getattr(annotation, "model_fields", {})
        annotation = fields[name].annotation if name in fields else None
    return annotation


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
