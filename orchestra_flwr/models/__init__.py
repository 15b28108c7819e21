"""Encoders and their heads."""

from orchestra_flwr.models.backbones import Backbone, build_backbone
from orchestra_flwr.models.batch_norm import BatchNormPolicy, check_statistics, recalibrated
from orchestra_flwr.models.ema import ema_update
from orchestra_flwr.models.encoder import (
    Encoder,
    EncoderSpec,
    encoder_at,
    encoder_of,
    load_encoder,
    save_encoder,
    tensors_sha256,
)
from orchestra_flwr.models.features import (
    device_of,
    evaluation_mode,
    extract_features,
    image_batches,
)
from orchestra_flwr.models.heads import build_head
from orchestra_flwr.models.normalisation import normalise
from orchestra_flwr.models.placement import resolve_device

__all__ = [
    "Backbone",
    "BatchNormPolicy",
    "Encoder",
    "EncoderSpec",
    "build_backbone",
    "build_head",
    "check_statistics",
    "device_of",
    "ema_update",
    "encoder_at",
    "encoder_of",
    "evaluation_mode",
    "extract_features",
    "image_batches",
    "load_encoder",
    "normalise",
    "recalibrated",
    "resolve_device",
    "save_encoder",
    "tensors_sha256",
]
