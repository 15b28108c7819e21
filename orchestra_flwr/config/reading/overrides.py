"""Reading the overrides of a command line, one at a time, so that errors name the override."""

import functools
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from orchestra_flwr.config.section import ConfigError
from orchestra_flwr.files import at_home

QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")


def read_overrides(
    texts: Sequence[str], choices: Iterable[str] = (), paths: Container[str] = ()
) -> list[Override]:
    """Parses overrides, each of which must have one value.

    Args:
        texts: as on a command line.
        choices: keys whose `<key>.name=x` is read as `<key>=x`, with the choice's own defaults.
        paths: keys whose values are paths, which are taken literally. Exceptions are null,
            enclosing quotes, and `${...}`, which refers to a key.

    Raises:
        ConfigError: one of them cannot be read, or has several values.
    """
    names = {f"{key}.name": key for key in choices}
    texts = [_at_home(_by_name(text, names)) for text in texts]
    return [
        _read(_literal(text) if text.partition("=")[0].lstrip("+") in paths else text)
        for text in texts
    ]


def swept_values(texts: Sequence[str], paths: Container[str] = ()) -> list[list[str]]:
    """The values of each override, as written: `seed=0,1` and `seed=range(0,2)` have two.

    Those of `paths` are separated by commas outside quotes, and otherwise literal. Errors are those
    of :func:`read_overrides`.

    Raises:
        ConfigError: one of them cannot be read.
    """
    return [
        _swept_paths(text) if text.partition("=")[0].lstrip("+") in paths else _swept(text)
        for text in texts
    ]


def _swept(text: str) -> list[str]:
    override = _parsed(text)
    if not override.is_sweep_override():
        return [text]
    with _countable(text):
        return list(override.sweep_string_iterator())


def _swept_paths(text: str) -> list[str]:
    """The values as written: Hydra's own texts have backslashes before spaces."""
    value = text.partition("=")[2]
    override = None
    if set(value) & set("'\"("):  # quoted ones may hold commas; choice(a,b)
        with suppress(ConfigError):
            override = _parsed(text)
    if override is not None:
        if not override.is_sweep_override():
            return [text]
        with _countable(text):
            values = list(override.sweep_iterator())
        return [v.with_quotes() if isinstance(v, QuotedString) else str(v) for v in values]
    return value.split(",") if "," in value else [text]


@contextmanager
def _countable(text: str) -> Iterator[None]:
    """Refuses sweeps that Hydra cannot count: glob(*), interval(0,1), range(0,1,0)."""
    try:
        yield
    except (HydraException, ValueError):
        raise ConfigError(
            f"{text}: must be values that can be counted, such as a,b or range(0,3)"
        ) from None


def override_text(key: str, value: Any, paths: Container[str] = ()) -> str:
    """`key=value`, as on a command line, for a Python value; `paths`: keys of paths.

    The value is None, a number, a text or a path, or a list or mapping of these. A text such as
    "[a,b]" is read as on a command line; a text that cannot be read that way is quoted.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    plain = f"{key}={value}"
    if isinstance(value, str):
        with suppress(HydraException):
            if key in paths or not parsed(plain).is_sweep_override():
                return plain
    return f"{key}={_as_written(value)}"


def _as_written(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}:{_as_written(item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_as_written, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _quoted(value) if isinstance(value, str) else str(value)


def values_of(overrides: Iterable[Override]) -> dict[str, Any]:
    """The values by their keys; None for a key that is deleted."""
    return {override.key_or_group: override.value() for override in overrides}


def value_text(override: Override) -> str:
    """The value as it was written."""
    return (override.input_line or "").partition("=")[2]


@functools.lru_cache(maxsize=4096)  # Hydra's grammar takes a millisecond
def parsed(text: str) -> Override:
    """One override, which may have several values.

    Raises:
        HydraException: it cannot be read.
    """
    (override,) = OverridesParser.create().parse_overrides([text])
    return override


def _read(text: str) -> Override:
    override = _parsed(text)
    if override.is_sweep_override():
        key, _, value = text.partition("=")
        raise ConfigError(
            f"{text}: must be one value; several runs are orchestra-sim -m, a list is written "
            f"[a,b], and a value with a comma is quoted: \"{key}='{value}'\""
        )
    return override


def _parsed(text: str) -> Override:
    key, equals, value = text.partition("=")
    if not text.startswith("~") and not (equals and key.strip("+")):
        raise ConfigError(f"overrides are written key=value, not {text}")
    try:
        return parsed(text)
    except HydraException:
        raise ConfigError(
            f"{text}: cannot be read; a list is written [a,b], and a value with special "
            f"characters is quoted: \"{key}='{value}'\""
        ) from None


def _by_name(text: str, names: dict[str, str]) -> str:
    key, equals, value = text.partition("=")
    return f"{names[key.lstrip('+')]}={value}" if equals and key.lstrip("+") in names else text


def _at_home(text: str) -> str:
    """`key=~/path` with the home folder, which shells only expand at the start of a word."""
    key, _, value = text.partition("=")
    return f"{key}={at_home(value)}" if value.startswith("~") else text


def _literal(text: str) -> str:
    """A path as a quoted value, in which Hydra's grammar interprets nothing."""
    key, equals, value = text.partition("=")
    if not equals or value in ("", "null") or "${" in value or QUOTED.fullmatch(value):
        return text
    return f"{key}={_quoted(value)}"


def _quoted(text: str) -> str:
    # Within Hydra's quotes, backslashes are special only before a quote, and at the end.
    escaped = re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + (m[2] and "\\'"), text)
    return f"'{escaped}'"
