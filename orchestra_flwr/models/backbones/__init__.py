"""The networks that `model.name` can choose: one file each."""

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from orchestra_flwr.config import Config, DataConfig, ModelConfig, Normalisation, Plugin
from orchestra_flwr.models.batch_norm import FreezableNorms, check_batch_norm
from orchestra_flwr.models.encoder_description import has_frozen_norms
from orchestra_flwr.models.norm_layers import is_norm
from orchestra_flwr.models.precision import network_pass


class TrainedOn(NamedTuple):
    """The images that pretrained weights were trained on."""

    size: int  # height and width in pixels
    # The value of `data.normalise` that scales as they were scaled, or nearly so.
    normalise: Normalisation


class Backbone(FreezableNorms, Plugin):
    """Images (B, channels, H, W), normalised, to features (B, dim).

    Class attributes:
        obeys_norm: whether its norms are those of `model.norm`; others have no BatchNorm, unless
            :meth:`has_batch_norm` says so.
        first_weights: options that only name a source of initial weights; a saved encoder leaves
            them out.

    Attributes:
        dim: width of the features; set in `__init__`.
        settings: as below.

    Args:
        settings: the backbone's own options, an object of its `Settings`.
        model: the options that all backbones have in common.
    """

    obeys_norm: ClassVar[bool] = True
    first_weights: ClassVar[tuple[str, ...]] = ()
    dim: int

    def __init_subclass__(cls, **options: Any) -> None:
        """Every subclass computes in `training.precision`."""
        super().__init_subclass__(**options)
        if "forward" in vars(cls):
            cls.forward = network_pass(cls.forward)

    def __init__(self, settings: Any, model: ModelConfig, channels: int) -> None:
        super().__init__()
        self.settings = settings

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses images of another size than the network's, and a wrong `model.batch_norm`."""
        size = getattr(config.model.settings, "image_size", config.data.image_size)
        if size != config.data.image_size:
            raise ValueError(
                f"model.image_size={size}: must be data.image_size={config.data.image_size}"
            )
        check_batch_norm(config)

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Frozen statistics are never recalibrated."""
        frozen = config.model.batch_norm == "frozen"
        return {"evaluation.recalibrated": "with model.batch_norm=frozen"} if frozen else {}

    @classmethod
    def suggested(cls, model: ModelConfig, data: DataConfig, init: str | None) -> dict[str, Any]:
        """Values for keys that nobody has set, by their full names.

        Images are as pretrained weights expect them. Statistics of pretrained BatchNorm come from
        far more images than a client has, and stay; so do those of an encoder whose run kept them.

        Args:
            init: the encoder that the run begins with, if any.

        Raises:
            OSError, ValueError: something cannot be found; the run will not begin.
        """
        suggested: dict[str, Any] = {}
        images = cls.trained_on(model)
        if images is not None:
            suggested["data.image_size"] = images.size
            if "image_size" in model.options:
                model = model.model_copy(update={"image_size": images.size})
            if data.channels == 3:
                suggested["data.normalise"] = images.normalise
        frozen = bool(model.first_weights) or (init is not None and has_frozen_norms(init))
        if frozen and cls.has_batch_norm(model):
            suggested["model.batch_norm"] = "frozen"
        return suggested

    @classmethod
    def trained_on(cls, model: ModelConfig) -> TrainedOn | None:
        """What pretrained weights expect; None: there are none, or it is not known."""
        return None

    @classmethod
    def has_batch_norm(cls, model: ModelConfig) -> bool:
        """Whether it has BatchNorm, so that statistics of images make a difference."""
        return cls.obeys_norm and model.norm == "batch"

    def layer_groups(self) -> list[set[str]]:
        """Names of the state's tensors by block, from the first layer to the last.

        A block is a layer, or a unit that the network repeats, with the norm that follows it.
        Tensors of the network itself, such as positions, belong to the first block.
        """
        return groups_of(self)

    def load_weights(self) -> None:
        """Loads the pretrained weights that the configuration names, if any.

        Called on the server alone, before the first round.

        Raises:
            ConfigError: they cannot be loaded, or do not fit.
        """


def groups_of(network: nn.Module, prefix: str = "") -> list[set[str]]:
    """:meth:`Backbone.layer_groups` of a network whose names begin with `prefix`."""
    blocks: list[set[str]] = []
    for path, module in _layers(network, prefix):
        names = {f"{path}.{name}" for name in module.state_dict()}
        if blocks and is_norm(module):
            blocks[-1] |= names
        elif names:
            blocks.append(names)
    outside = {prefix + name for name in network.state_dict()} - set().union(*blocks)
    return [outside | blocks[0], *blocks[1:]] if blocks else [outside]


def _layers(network: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The children of a network in order, sequences of them taken apart."""
    for name, child in network.named_children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from _layers(child, f"{path}{name}.")
        else:
            yield f"{path}{name}", child


def build_backbone(model: ModelConfig, channels: int) -> Backbone:
    """The backbone named by the configuration, freshly initialised, for images of `channels`.

    Its weights and activations are channels-last, so convolutions need not reorder them.
    """
    backbone: Backbone = model.build(model, channels)
    if model.batch_norm == "frozen":
        backbone.freeze_norms()
    return backbone.to(memory_format=torch.channels_last)
