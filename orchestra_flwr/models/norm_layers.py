"""Which normalisation layers backbones and heads have (`model.norm`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import nn

Norm = Callable[[int], nn.Module]
NormName = Literal["batch", "group"]

GROUP_CHANNELS = 8  # of a group; `model.width` is a multiple of it


def norm_layer(name: NormName) -> Norm:
    """Makes the normalisation layer of a number of channels.

    Args:
        name: "batch", or "group": groups of 8 channels, without statistics of other images.
    """
    if name == "batch":
        return nn.BatchNorm2d
    return lambda channels: nn.GroupNorm(channels // GROUP_CHANNELS, channels)


def head_norm(
    name: NormName, features: int, *, affine: bool = True, statistics: bool = False
) -> nn.Module:
    """A head's normalisation layer: (B, features) to (B, features).

    Args:
        name: "batch", or "group": groups of 8 features of one image; a single group where 8 does
            not divide their number.
        features: their number.
        affine: whether it has a weight and a bias for each feature.
        statistics: whether BatchNorm keeps running statistics, for evaluation mode. Without them
            it takes a batch's own in either mode, and has nothing that travels.
    """
    if name == "batch":
        return nn.BatchNorm1d(features, affine=affine, track_running_stats=statistics)
    groups = features // GROUP_CHANNELS if features % GROUP_CHANNELS == 0 else 1
    return nn.GroupNorm(groups, features, affine=affine)
