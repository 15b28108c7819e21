"""Errors in the `conf/` files of a user's package, with the file's name."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from hydra.core.override_parser.types import Override

from orchestra_flwr.config.reading.hydra_overrides import conf_folders_of
from orchestra_flwr.config.reading.overrides import values_of
from orchestra_flwr.config.section import ConfigError

KEY = re.compile(r"[\w.]*")  # that a message begins with


@contextmanager
def user_files_named(overrides: Sequence[Override]) -> Iterator[None]:
    """Puts the file's name before an error about a value from that file, not the command line."""
    try:
        yield
    except ConfigError as error:
        if file := _file_of(str(error), overrides):
            raise ConfigError(f"{file}: {error}") from None
        raise


def no_yaml(error: yaml.YAMLError) -> str:
    """Why a file is not valid YAML, with the file's name where it is known."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    return f"{mark.name}, line {mark.line + 1}: is no YAML ({getattr(error, 'problem', '')})"


def _file_of(message: str, overrides: Sequence[Override]) -> Path | None:
    """The file of a user's package that has the key with which a message begins."""
    values = {key: str(value) for key, value in values_of(overrides).items()}
    key: str = KEY.findall(message)[0]  # "" where it begins with none
    group, _, option = key.partition(".")
    if (option and key in values) or message.startswith(f"{group}={values.get(group)}:"):
        return None
    names_key = re.compile(rf"\b{re.escape(key.rpartition('.')[2])}\s*:")
    chosen = [*values.items(), (group, option.partition(".")[0])]  # a term is named by its key
    for folder in conf_folders_of(overrides)[1:]:
        for part, name in chosen:
            file = folder / part / f"{name}.yaml"
            is_here = part == group and (not option or message == f"{key}: must be given")
            if file.is_file() and (is_here or names_key.search(file.read_text("utf-8"))):
                return file
    return None
