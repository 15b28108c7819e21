"""Encoders that were trained before: one of ours, or a network of timm with its weights."""

from collections.abc import Sequence

import torch

from orchestra_flwr.config import ConfigError, ModelConfig, parse
from orchestra_flwr.files import at_home
from orchestra_flwr.models.backbones import TrainedOn
from orchestra_flwr.models.backbones.timm import PUBLISHED, Timm, check_weights
from orchestra_flwr.models.encoder import Encoder, EncoderSpec, encoder_at

UNKNOWN = TrainedOn(224, "imagenet")  # what most networks were trained on


def pretrained_encoder(
    key: str,
    name: str,
    *,
    weights: str = PUBLISHED,
    size: int | None = None,
    plugins: Sequence[str] = (),
) -> Encoder:
    """The encoder that a name refers to.

    Args:
        key: of the configuration, for messages; `weights` is the value of `<key>_weights`.
        name: a run folder or an `encoder.safetensors`; else a network of `timm.list_models()`.
        weights: of a network of timm, "pretrained" or a file; encoders of ours have their own.
        size: height and width of the images that a network of timm takes; None: those that its
            weights were trained on.
        plugins: the user's packages that may hold the backbone of an encoder of ours.

    Raises:
        ConfigError: there is no such encoder, or it cannot be read.
    """
    if (path := at_home(name)).exists():
        return encoder_at(f"{key}={name}", path, plugins=plugins)
    try:
        return _of_timm(key, name, weights, size)
    except ValueError as error:
        what = "no file or folder, and as a network of timm"
        raise ConfigError(f"{key}={name}: {what}: {error}") from None


def _of_timm(key: str, name: str, weights: str, size: int | None) -> Encoder:
    check_weights(f"{key}_weights", weights)
    values = {"name": "timm", "timm": name, "weights": weights}
    images = Timm.trained_on(parse(ModelConfig, values)) or UNKNOWN
    size = size or images.size
    model = parse(ModelConfig, {**values, "image_size": size})
    spec = EncoderSpec(model=model, channels=3, image_size=size, normalise=images.normalise)
    with torch.random.fork_rng(devices=[]):  # random weights come first
        encoder = Encoder(spec)
    network = encoder.backbone
    assert isinstance(network, Timm)
    network.load_weights(f"{key}_weights")
    return encoder
