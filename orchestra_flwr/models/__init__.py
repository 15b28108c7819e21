"""Encoders and their heads."""

from orchestra_flwr.models.backbones import Backbone, build_backbone
from orchestra_flwr.models.clean_features import clean_features
from orchestra_flwr.models.ema import ema_update
from orchestra_flwr.models.encoder import (
    Encoder,
    EncoderSpec,
    load_encoder,
    normalise,
    save_encoder,
)
from orchestra_flwr.models.heads import mlp

__all__ = [
    "Backbone",
    "Encoder",
    "EncoderSpec",
    "build_backbone",
    "clean_features",
    "ema_update",
    "load_encoder",
    "mlp",
    "normalise",
    "save_encoder",
]
