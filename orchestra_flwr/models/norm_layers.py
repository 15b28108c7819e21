"""Which normalisation layers backbones and heads have (`model.norm`)."""

from collections.abc import Callable
from typing import Literal

from torch import nn

Norm = Callable[[int], nn.Module]
NormName = Literal["batch", "group"]

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)

GROUP_CHANNELS = 8  # of a group; `model.width` is a multiple of it


def norm_layer(name: NormName, groups: int | None = None) -> Norm:
    """Makes the normalisation layer of a number of channels.

    Args:
        name: "batch", or "group": without statistics of other images.
        groups: how many each GroupNorm has (`model.groups`); None: groups of 8 channels.
    """
    if name == "batch":
        return nn.BatchNorm2d
    return lambda channels: nn.GroupNorm(groups or channels // GROUP_CHANNELS, channels)


def head_norm(
    name: NormName,
    features: int,
    *,
    groups: int | None = None,
    affine: bool = True,
    statistics: bool = False,
) -> nn.Module:
    """A head's normalisation layer: (B, features) to (B, features).

    Args:
        name: "batch", or "group": groups of features of one image.
        groups: as for :func:`norm_layer`; a single one where the features cannot be so divided.
        affine: whether it has a weight and a bias for each feature.
        statistics: whether BatchNorm keeps running statistics; without them it normalises by the
            batch in evaluation mode too.
    """
    if name == "batch":
        return nn.BatchNorm1d(features, affine=affine, track_running_stats=statistics)
    if groups is None:
        groups = features // GROUP_CHANNELS if features % GROUP_CHANNELS == 0 else 1
    return nn.GroupNorm(groups if features % groups == 0 else 1, features, affine=affine)


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises: one of torch's norms, or a class with "norm" in its name."""
    return isinstance(module, NORMS) or "norm" in type(module).__name__.lower()
