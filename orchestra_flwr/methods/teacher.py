"""A client's teacher: a network that stays on the client, and what it makes of the images there.

It is no module of the method: it has no role, is no part of the state, and nothing can send it.
"""

import hashlib
import threading
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.files import at_home
from orchestra_flwr.models import Encoder
from orchestra_flwr.models.pretrained import pretrained_encoder
from orchestra_flwr.seeding import torch_generator

CLIENT = "{client}"  # stands for the client's name in the teacher's
MAX_KEPT = 512  # clients of a process whose targets are kept; 2 KB an image with 512 numbers

_TARGETS: OrderedDict[tuple[object, ...], Tensor] = OrderedDict()
_ONE_AT_A_TIME = threading.Lock()  # clients in threads share targets and teacher


def teacher_of(config: Config, client: str) -> Encoder:
    """The teacher of one client.

    Raises:
        ConfigError: the client has none, or it cannot be read.
    """
    return _read(*_source(config, client))


def targets_of(config: Config, client: str, images: Tensor) -> Tensor:
    """The features that a client's teacher has for its images as they are, as unit vectors.

    A fixed random matrix with orthonormal rows or columns brings the teacher's features to
    `model.projector_dim` numbers, so that any two teachers fit one model. Cosines stay as they are
    where the width does not become smaller, and nearly so otherwise (Johnson and Lindenstrauss,
    1984).

    Args:
        images: (n, C, H, W) uint8.

    Returns:
        (n, `model.projector_dim`) float32 on the images' device. A process computes them once.

    Raises:
        ConfigError: as :func:`teacher_of`.
        ValueError: features that are not finite.
    """
    source = _source(config, client)
    pixels = images.cpu().contiguous()
    digest = hashlib.sha256(pixels.numpy().data).digest()
    width, batch = config.model.projector_dim, config.training.batch_size
    key = (source, digest, images.shape, images.device, width, batch, config.seed)
    with _ONE_AT_A_TIME:
        if key not in _TARGETS:
            teacher = _read(*source)
            features = teacher.to(images.device).encode(pixels, batch)
            if not torch.isfinite(features).all():
                raise ValueError("features of the teacher (method.teacher) are not finite")
            turned = features @ _turn(teacher.dim, width, config.seed)
            _TARGETS[key] = F.normalize(turned, dim=1).to(images.device)
        _TARGETS.move_to_end(key)
        while len(_TARGETS) > MAX_KEPT:
            _TARGETS.popitem(last=False)
        return _TARGETS[key]


def _turn(inputs: int, outputs: int, seed: int) -> Tensor:
    """(inputs, outputs) with orthonormal columns, or rows where there are more outputs."""
    generator = torch_generator(seed, "teacher", inputs, outputs)
    most, least = max(inputs, outputs), min(inputs, outputs)
    columns: Tensor = torch.linalg.qr(torch.randn(most, least, generator=generator)).Q
    return columns if inputs >= outputs else columns.T


def _source(config: Config, client: str) -> tuple[Any, ...]:
    """Where a client's teacher is read from, and when its files were written."""
    options = config.method.settings
    if not options.teacher:
        raise ConfigError(
            f"method.teacher: client {client} has none; give a run folder, an encoder.safetensors "
            "or a name of timm.list_models()"
        )
    name, weights = options.teacher.replace(CLIENT, client), options.teacher_weights
    paths = [at_home(path) for path in (name, weights)]
    files: list[Path] = [p / "encoder.safetensors" if p.is_dir() else p for p in paths]
    written = tuple(file.stat().st_mtime for file in files if file.is_file())
    return name, weights, options.teacher_size, tuple(config.plugins), written


@lru_cache(maxsize=1)  # clients of a process mostly have the same teacher
def _read(
    name: str, weights: str, size: int | None, plugins: tuple[str, ...], written: object
) -> Encoder:
    return pretrained_encoder("method.teacher", name, weights=weights, size=size, plugins=plugins)
