"""Which normalisation layers a backbone has (`model.norm`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import nn

Norm = Callable[[int], nn.Module]

GROUP_CHANNELS = 8  # of a group; `model.width` is a multiple of it


def norm_layer(name: Literal["batch", "group"]) -> Norm:
    """Makes the normalisation layer of a number of channels.

    Args:
        name: "batch", or "group": groups of 8 channels, without statistics of other images.
    """
    if name == "batch":
        return nn.BatchNorm2d
    return lambda channels: nn.GroupNorm(channels // GROUP_CHANNELS, channels)
