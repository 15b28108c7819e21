"""Any image model of timm as a backbone (https://huggingface.co/docs/timm)."""

from __future__ import annotations

import difflib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from orchestra_flwr.config import Config, ConfigError, ModelConfig, Section
from orchestra_flwr.models.backbones import Backbone

PUBLISHED = "pretrained"  # in place of a file: the weights that timm has under the model's name
SUFFIX = ".safetensors"


class TimmSettings(Section):
    """Options under `model.` for model=timm."""

    timm: str = "mobilenetv3_small_100"  # as `timm.list_models()` names it, with a tag or without
    weights: str | None = None  # "pretrained", or a file; None: random ones
    image_size: int = Field(32, ge=8, le=512)  # height and width of the images, in pixels


class Timm(Backbone):
    """The model without its classifier; norms and width are its own, not `model.norm` and `.width`.

    Dropout of values, of branches and of attention is off: it would draw from torch's global
    generator, and the same seed would no longer give the same bits.

    Raises:
        ConfigError: the model does not exist, or takes no images of this size.
    """

    Settings = TimmSettings

    def __init__(self, settings: TimmSettings, model: ModelConfig, channels: int) -> None:
        super().__init__(settings, model, channels)
        self.settings, self._channels = settings, channels
        self.model = _created(settings, channels)
        _without_dropout(self.model)
        self.dim = self._width()

    @classmethod
    def check(cls, config: Config) -> None:
        """As :meth:`Plugin.check`: timm is there and has the model; the images' size is the run's.

        Raises:
            ValueError: names the key.
        """
        settings: TimmSettings = config.model.settings
        timm = _library()
        if settings.image_size != config.data.image_size:
            raise ValueError(
                f"model.image_size={settings.image_size}: must be "
                f"data.image_size={config.data.image_size}"
            )
        name = settings.timm.partition(".")[0]
        if not timm.is_model(name):
            close = difflib.get_close_matches(name, timm.list_models(), n=3)
            hint = f": did you mean {' or '.join(close)}?" if close else ""
            raise ValueError(
                f"model.timm={settings.timm}: timm {timm.__version__} has no model of this name"
                f"{hint or ' (timm.list_models() lists them)'}"
            )
        weights = settings.weights
        if weights is not None and weights != PUBLISHED and not weights.endswith(SUFFIX):
            raise ValueError(
                f"model.weights={weights}: must be null, {PUBLISHED} or a file *{SUFFIX}"
            )

    @classmethod
    def has_batch_norm(cls, model: ModelConfig) -> bool:
        """As :meth:`Backbone.has_batch_norm`; what the model has."""
        return _has_batch_norm(model.settings.timm, model.settings.image_size)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, image_size, image_size) normalised images to (B, dim) features."""
        features: Tensor = self.model(x)
        return features

    def load_weights(self) -> None:
        """As :meth:`Backbone.load_weights`; timm fits them to the images' channels and size."""
        weights = self.settings.weights
        if weights is None:
            return
        file = None if weights == PUBLISHED else weights
        if file and not Path(file).is_file():
            raise ConfigError(f"model.weights={file}: no such file")
        source = {"pretrained_cfg_overlay": {"file": file}} if file else {}
        try:
            trained = _created(self.settings, self._channels, pretrained=True, **source)
        except Exception as error:  # of the network, the hub's library, or what is in the file
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            hint = "is it of this model?" if file else "without a network, name a file"
            raise ConfigError(
                f"model.weights={weights}: cannot be loaded for model.timm={self.settings.timm}, "
                f"{hint} ({reason})"
            ) from error
        self.model.load_state_dict(trained.state_dict())

    def _width(self) -> int:
        """Features of an image, as two black ones have them."""
        training, size = self.model.training, self.settings.image_size
        parameter = next(self.model.parameters())
        black = torch.zeros(2, self._channels, size, size, device=parameter.device)
        with torch.no_grad():
            try:
                features = self.model.eval()(black)
            except (RuntimeError, AssertionError, ValueError) as error:
                raise _unfit(self.settings, error) from error
        self.model.train(training)
        return int(features.shape[1])


def _library() -> ModuleType:
    """Timm itself.

    Raises:
        ValueError: it is not installed.
    """
    if find_spec("timm") is None:
        raise ValueError("model=timm: timm is not installed; pip install 'orchestra-flwr[timm]'")
    import timm

    return timm


def _created(settings: TimmSettings, channels: int, **options: Any) -> nn.Module:
    """The model for images of this size and with so many channels, without a classifier."""
    timm = _library()
    trained_on = timm.get_pretrained_cfg(settings.timm, allow_unregistered=True)
    if trained_on is not None and trained_on.fixed_input_size:
        options["img_size"] = settings.image_size
    if not options.get("pretrained"):
        options["pretrained"] = False
    try:
        model: nn.Module = timm.create_model(
            settings.timm, in_chans=channels, num_classes=0, **options
        )
    except (AssertionError, ValueError) as error:
        raise _unfit(settings, error) from error
    return model


def _unfit(settings: TimmSettings, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split())[:200] or "its layers refuse them"
    return ConfigError(
        f"model.timm={settings.timm}: cannot be built for images of {settings.image_size} x "
        f"{settings.image_size} pixels (data.image_size): {reason}"
    )


def _without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif "drop_prob" in vars(module):  # timm's DropPath and DropBlock
            vars(module)["drop_prob"] = 0.0


@cache
def _has_batch_norm(name: str, image_size: int) -> bool:
    with torch.device("meta"):
        model = _created(TimmSettings(timm=name, image_size=image_size), 3)
    return any(isinstance(module, _BatchNorm) for module in model.modules())
