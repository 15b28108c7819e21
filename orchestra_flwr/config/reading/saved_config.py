"""Writing and reading a run's `config.yaml`, as data alone: it may come from anywhere."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from orchestra_flwr.config.run import Config
from orchestra_flwr.config.section import ConfigError, Section, parse
from orchestra_flwr.config.user_packages import check_named

S = TypeVar("S", bound=Section)

MAX_BYTES = 2**17  # a run writes about 3,000
MAX_LEVELS = 50  # of nested lists and mappings; a run writes 4
MAX_REASON = 200  # characters
# A number in YAML 1.2 and OmegaConf, but a text in YAML 1.1.
NUMBER = re.compile(r"[-+]?\d+(_\d+)*(\.[\d_]*)?[eE][-+]?\d+$")


def config_to_yaml(config: Section | Mapping[str, Any]) -> str:
    """A whole configuration, or its values, as YAML for a run folder."""
    values = config.model_dump() if isinstance(config, Section) else dict(config)
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def read_config_file(file: Path) -> dict[str, Any]:
    """The values in a file of plain YAML.

    Values are not interpreted: `${...}` stays a text. Anchors, aliases and tags are refused: with
    them a small file could become a large value, or an object.

    Raises:
        ConfigError: one line that names the file: it cannot be read, is too large, is not UTF-8 or
            not plain YAML, or does not hold keys with values.
    """
    try:
        with file.open("rb") as content:
            data = content.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{file}: is damaged, it has more than {MAX_BYTES:,} bytes")
        values = yaml.load(data.decode(), _Loader)  # noqa: S506  (a safe one)
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is damaged, it is not UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        problem = f"is damaged, it is no plain YAML ({error.problem})"
        raise ConfigError(f"{file}{where}: {problem}") from None
    except (yaml.YAMLError, ValueError) as error:  # a character or a number that cannot be
        if isinstance(error, ConfigError):
            raise
        reason = " ".join(str(error).split())[:MAX_REASON]
        raise ConfigError(f"{file}: is damaged, it is no plain YAML ({reason})") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    if not isinstance(values, dict) or not values:
        raise ConfigError(f"{file}: is damaged, it must hold keys with values")
    return {str(key): value for key, value in values.items()}


def read_run(folder: Path, plugins: Collection[str] = ()) -> Config:
    """The configuration of a finished run, simulated or of a server.

    Keys that only servers have, such as addresses, are left out. `plugins` are the users' packages
    that the caller names.

    Raises:
        ConfigError: one line that names the file: it is missing or damaged, or asks for packages
            that nobody named.
    """
    file = folder / "config.yaml"
    values = read_config_file(file)
    check_named(file, values.get("plugins") or (), plugins)
    known = {key: value for key, value in values.items() if key in Config.model_fields}
    return parse_saved(Config, known, file)


def parse_saved(section: type[S], values: Mapping[str, Any], file: Path) -> S:
    """The configuration in a run's file; another version may have allowed other values.

    Raises:
        ConfigError: one line that names the file and the key.
    """
    try:
        return parse(section, values)
    except ConfigError as error:
        hint = "if another version of orchestra_flwr wrote this, that version reads it"
        raise ConfigError(f"{file}: {error}; {hint}") from None


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        """True: a value that occurs twice is written twice."""
        return True


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads plain YAML, whose values are never larger than the file."""

    levels = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if event.anchor is not None or getattr(event, "tag", None) is not None:
            raise _refusal("anchors, aliases and tags, & * !, are not allowed", event.start_mark)
        if self.levels > MAX_LEVELS:
            raise _refusal("nested too deeply", event.start_mark)
        self.levels += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.levels -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        values: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(values) < len(node.value):
            raise _refusal("a key occurs twice", node.start_mark)
        return values


for yaml_class in (_Dumper, _Loader):
    yaml_class.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+.0123456789"))


def _refusal(problem: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
