"""The encoder that a run leaves behind: saved without pickle, read back by :func:`load_encoder`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.files import replacing, write_atomically
from orchestra_flwr.models.backbones import Backbone, build_backbone


def normalise(images: Tensor) -> Tensor:
    """Images in [0, 1] to the networks' range [-1, 1] (mean .5, deviation .5 as published)."""
    return (images * 2).sub_(1)


class EncoderSpec(BaseModel):
    """What must be known to build an encoder again; stored as `encoder.json` beside the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelConfig
    channels: int
    image_size: int


class Encoder(nn.Module):
    """A frozen backbone behind a normalisation: images in, features out.

    Attributes:
        spec: how it was built, with the `channels` and `image_size` that it expects.
        dim: width of the features.
    """

    def __init__(self, spec: EncoderSpec, backbone: Backbone | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.backbone = backbone or build_backbone(spec.model, spec.channels)
        self.dim: int = self.backbone.dim
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Features of images.

        Args:
            images: (B, channels, image_size, image_size), uint8 in 0..255 or float in [0, 1].

        Returns:
            (B, dim) float features.

        Raises:
            ValueError: the images have another shape.
        """
        expected = (self.spec.channels, self.spec.image_size, self.spec.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"the encoder expects images (B, {expected}), not {tuple(images.shape)}"
            )
        if images.dtype == torch.uint8:
            images = images.float() / 255
        features: Tensor = self.backbone(normalise(images))
        return features


def save_encoder(path: str | Path, encoder: Encoder, **about: Any) -> None:
    """Writes `path` (safetensors) and, beside it with `.json`, the spec and `about`.

    Each file is replaced as a whole: after an error the old one is still there.
    """
    path = Path(path)
    weights = {k: v.detach().cpu().contiguous() for k, v in encoder.backbone.state_dict().items()}
    description = json.dumps({"spec": encoder.spec.model_dump(), "about": about}, indent=2)
    with replacing(path) as temporary:
        save_file(weights, temporary)
    write_atomically(path.with_suffix(".json"), (description + "\n").encode())


def load_encoder(path: str | Path, device: str | torch.device = "cpu") -> Encoder:
    """Reads an encoder back.

    Args:
        path: a run folder, or an `encoder.safetensors` with its `encoder.json` beside it.
        device: where the encoder shall live.

    Returns:
        The encoder in evaluation mode, without gradients.

    Raises:
        FileNotFoundError: one of the two files is missing.
        ValueError: weights and description do not fit each other.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "encoder.safetensors"
    for file in (path, path.with_suffix(".json")):
        if not file.is_file():
            raise FileNotFoundError(
                f"{file}: no such file (a finished run leaves it in its run folder)"
            )
    spec = EncoderSpec.model_validate(json.loads(path.with_suffix(".json").read_text())["spec"])
    encoder = Encoder(spec)
    try:
        encoder.backbone.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit its description: {error}") from None
    return encoder.to(device)
