"""A `config.yaml` that a run has saved, as plain values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestra_flwr.config.section import ConfigError

LONGEST_REASON = 200  # characters
# Tags, anchors, interpolations: a run writes none.
NOT_PLAIN = re.compile(r"[!&*]|\$\{")
# What OmegaConf takes for a number beside what YAML does, such as 1e-3.
NUMBER = re.compile(r"[-+]?\d+(_\d+)*(\.[\d_]*)?[eE][-+]?\d+$")
DATE = "tag:yaml.org,2002:timestamp"  # text, to OmegaConf
# Each may begin a level, and libyaml takes levels until its process has no stack left.
LEVELS, MOST_LEVELS = "[{-?", 500


def read_config_file(file: Path) -> dict[str, Any]:
    """The values in a file of YAML, with interpolations resolved.

    Raises:
        ConfigError: one line that names the file: it cannot be read, is no text in UTF-8, no YAML,
            or holds something else than keys with values.
    """
    try:
        values = _plain(file.read_text(encoding="utf-8"))
        if values is None:
            values = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is damaged, it is no text in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        raise ConfigError(f"{file}{where}: is damaged, it is no YAML ({error.problem})") from None
    except (yaml.YAMLError, OmegaConfBaseException, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        if "recursion" in reason:
            reason = "nested too deeply"
        raise ConfigError(f"{file}: is damaged, it is no YAML ({reason})") from None
    except OSError as error:  # omegaconf raises one for a file that holds a single word
        reason = error.strerror or "it must hold keys with values"
        raise ConfigError(f"{file}: cannot be read: {reason}") from None
    if not isinstance(values, dict) or not values:
        raise ConfigError(f"{file}: is damaged, it must hold keys with values")
    return {str(key): value for key, value in values.items()}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads plain YAML as OmegaConf does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            raise yaml.YAMLError("a key stands twice")
        return found


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != DATE]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+.0123456789"))


def _plain(text: str) -> Any:
    """What a run has written, read in a tenth of OmegaConf's time; None: it shall read it."""
    if NOT_PLAIN.search(text) or sum(map(text.count, LEVELS)) > MOST_LEVELS:
        return None
    try:
        return yaml.load(text, _Loader)  # noqa: S506  (a safe one)
    except yaml.YAMLError:
        return None
