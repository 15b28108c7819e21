"""A `config.yaml` that a run has saved, as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestra_flwr.config.section import ConfigError

LONGEST_REASON = 200  # characters


def read_config_file(file: Path) -> dict[str, Any]:
    """The values in a file of YAML, with interpolations resolved.

    Raises:
        ConfigError: one line that names the file: it cannot be read, is no text in UTF-8, no YAML,
            or holds something else than keys with values.
    """
    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
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
