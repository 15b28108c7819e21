"""The networks that `model.name` can choose: one file each."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from orchestra_flwr.config import Config, ModelConfig, Plugin
from orchestra_flwr.models.batch_norm import FreezableNorms, check_batch_norm
from orchestra_flwr.models.precision import network_pass


class Backbone(Plugin, FreezableNorms):
    """Images (B, channels, H, W), normalised, to features (B, dim).

    Class attributes:
        obeys_norm: whether its norms are those of `model.norm`; others have no BatchNorm, unless
            :meth:`has_batch_norm` says so.
        first_weights: options that only say where first weights come from. A saved encoder does not
            name them: they are no part of the network, and may be a path.

    Attributes:
        dim: width of the features; set in `__init__`.

    Args:
        settings: the backbone's own options, an object of its `Settings`.
        model: what all backbones have in common.
        channels: colour channels of the images.
    """

    obeys_norm: ClassVar[bool] = True
    first_weights: ClassVar[tuple[str, ...]] = ()
    dim: int

    def __init_subclass__(cls, **options: Any) -> None:
        """Every subclass computes in the precision that is asked for (`training.precision`)."""
        super().__init_subclass__(**options)
        if "forward" in vars(cls):
            cls.forward = network_pass(cls.forward)

    def __init__(self, settings: Any, model: ModelConfig, channels: int) -> None:
        super().__init__()

    @classmethod
    def check(cls, config: Config) -> None:
        """As :meth:`Plugin.check`: here, that `model.batch_norm` can be had as asked for."""
        check_batch_norm(config)

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Frozen statistics are never taken anew, not even for scores beside the others."""
        frozen = config.model.batch_norm == "frozen"
        return {"evaluation.recalibrated": "with model.batch_norm=frozen"} if frozen else {}

    @classmethod
    def has_batch_norm(cls, model: ModelConfig) -> bool:
        """Whether it has BatchNorm, so that statistics of images make a difference."""
        return cls.obeys_norm and model.norm == "batch"

    def load_weights(self) -> None:
        """Puts weights that were trained elsewhere, if the configuration names some, in place.

        Called on the server alone, before the first round: clients and who loads a saved encoder
        have no use for them.

        Raises:
            ConfigError: they cannot be had, or do not fit.
        """


def build_backbone(model: ModelConfig, channels: int) -> Backbone:
    """The backbone named by the configuration, freshly initialised, for images of `channels`.

    With `model.batch_norm=frozen` its BatchNorm is frozen, whoever builds it.

    Its weights lie channels-last, and so does all that it computes: convolutions then need not
    reorder what they read and write.
    """
    backbone: Backbone = model.build(model, channels)
    if model.batch_norm == "frozen":
        backbone.freeze_norms()
    return backbone.to(memory_format=torch.channels_last)
