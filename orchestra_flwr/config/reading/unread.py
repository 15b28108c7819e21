"""Refusing keys on a command line that have no effect."""

from collections.abc import Iterable, Sequence

from hydra.core.override_parser.types import Override

from orchestra_flwr.config.reading.overrides import read_overrides
from orchestra_flwr.config.section import Composed, ConfigError, path_keys, why_unread


def refuse_unread(config: Composed, overrides: Iterable[Override]) -> None:
    """Refuses overrides that have no effect in a run with this configuration."""
    unread = config.unread()
    for override in overrides:
        key = override.key_or_group
        why = None if override.is_delete() else why_unread(key, unread)
        if why:
            raise ConfigError(f"{key}: is not read {why}; leave it out")


def without_unread(config: Composed, overrides: Sequence[str]) -> list[str]:
    """The overrides, as on a command line, that have an effect; for those that runs share."""
    unread, paths = config.unread(), set(path_keys(type(config)))
    keys = [override.key_or_group for override in read_overrides(overrides, paths=paths)]
    return [text for text, key in zip(overrides, keys, strict=True) if not why_unread(key, unread)]
