"""Encoders and their heads."""

from orchestra_flwr.models.backbones import Backbone, build_backbone
from orchestra_flwr.models.encoder import (
    Encoder,
    EncoderSpec,
    load_encoder,
    normalise,
    save_encoder,
)
from orchestra_flwr.models.heads import projector

__all__ = [
    "Backbone",
    "Encoder",
    "EncoderSpec",
    "build_backbone",
    "load_encoder",
    "normalise",
    "projector",
    "save_encoder",
]
