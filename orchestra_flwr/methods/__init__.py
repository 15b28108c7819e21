"""What clients learn: one file a method."""

from __future__ import annotations

import importlib
import pkgutil

import torch

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.methods.base import Batch, Contribution, Method, Role
from orchestra_flwr.methods.labels import labels_for
from orchestra_flwr.models import Backbone
from orchestra_flwr.seeding import derive


def _methods() -> dict[str, type[Method]]:
    """Every module of this folder that defines a method, by the module's name."""
    found: dict[str, type[Method]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for thing in vars(module).values():
            if (
                isinstance(thing, type)
                and issubclass(thing, Method)
                and thing.__module__ == module.__name__
                and thing is not Method
            ):
                found[info.name] = thing
    return found


METHODS = _methods()

__all__ = [
    "METHODS",
    "Batch",
    "Contribution",
    "Method",
    "Role",
    "build_method",
    "kept_first",
    "labels_for",
]


def build_method(config: Config, channels: int) -> Method:
    """The method named by the configuration, freshly initialised from the run's seed.

    Raises:
        ConfigError: an unknown method, or an option that it does not know or allow.
    """
    name = config.method.name
    if name not in METHODS:
        raise ConfigError(f"method.name={name}: unknown method (known: {', '.join(METHODS)})")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "init"))
        method = METHODS[name](config, channels)
    kept_first(method, config.evaluation.backbone)
    return method


def kept_first(method: Method, kept: str | None) -> dict[str, Backbone]:
    """A method's backbones, with the one of name `kept` (None: the method's own first) in front.

    Raises:
        ConfigError: the method has no backbone of that name.
    """
    backbones = method.backbones()
    if kept is None:
        return backbones
    if kept not in backbones:
        raise ConfigError(
            f"evaluation.backbone={kept}: must be null or one of {', '.join(backbones)}"
        )
    return {kept: backbones[kept], **backbones}
