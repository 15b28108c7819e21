"""What clients learn: one file a method. Methods are found by the names of their files."""

from __future__ import annotations

import torch
from torch import nn

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.methods.base import Batch, Classes, Method, Received, Step
from orchestra_flwr.methods.labels import labels_for
from orchestra_flwr.methods.release import Contribution, Release
from orchestra_flwr.methods.roles import Role, role_of
from orchestra_flwr.models import Backbone
from orchestra_flwr.seeding import derive

__all__ = [
    "Batch",
    "Classes",
    "Contribution",
    "Method",
    "Received",
    "Release",
    "Role",
    "Step",
    "build_method",
    "classification_head_of",
    "kept_first",
    "labels_for",
    "role_of",
]


def build_method(config: Config, channels: int) -> Method:
    """The method named by the configuration, freshly initialised from the run's seed.

    Raises:
        ConfigError: the method cannot be built for these images.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "init"))
        method: Method = config.method.plugin(config, channels)
    kept_first(method, config.evaluation.backbone)
    return method


def classification_head_of(method: Method, backbone: Backbone) -> nn.Module | None:
    """What classifies the features of one of a method's backbones; None: nothing does."""
    first = next(iter(method.backbones().values()))
    return method.classification_head() if backbone is first else None


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
