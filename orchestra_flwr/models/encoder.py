"""The encoder that a run ends with: saved without pickle, read by :func:`load_encoder`."""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from orchestra_flwr.config import Config, ConfigError, ModelConfig, Normalisation, Section, parse
from orchestra_flwr.config.user_packages import check_named
from orchestra_flwr.files import encoder_file, replacing
from orchestra_flwr.fingerprints import file_sha256
from orchestra_flwr.models.backbones import Backbone, build_backbone
from orchestra_flwr.models.encoder_description import (
    REMEDY,
    read_description,
    take_upcoming,
    upcoming,
    write_description,
)
from orchestra_flwr.models.encoder_input import batches, checked_batch
from orchestra_flwr.models.features import image_batches
from orchestra_flwr.models.normalisation import normalise
from orchestra_flwr.models.placement import resolve_device
from orchestra_flwr.models.state_size import state_size
from orchestra_flwr.square_image import AnyImage, square_image
from orchestra_flwr.tensor_files import save_plain

if TYPE_CHECKING:  # this would import Hydra, which a client does not need
    from orchestra_flwr.config import OfSavedEncoder


class EncoderSpec(Section):
    """The description of an encoder, stored as `encoder.json` beside the weights."""

    model: ModelConfig  # the backbone and its options
    channels: Literal[1, 3]  # colour channels of the images
    image_size: int = Field(ge=8, le=512)  # height and width of the images in pixels
    normalise: Normalisation = "half"  # encoders of earlier versions have no other
    # Users' packages that may hold the backbone; (): those that `model` knows.
    plugins: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Config) -> Self:
        """The description of a run's encoders."""
        return cls(
            model=config.model,
            channels=config.data.channels,
            image_size=config.data.image_size,
            normalise=config.data.normalise,
        )

    @model_validator(mode="after")
    def _model_knows_the_packages(self) -> Self:
        if self.plugins:
            self.model.look_in(self.plugins)
        return self


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

    @classmethod
    def of(cls, config: Config, backbone: Backbone) -> Self:
        """A copy of a run's backbone; what `adaptation` added is merged into its weights."""
        merged = copy.deepcopy(backbone)
        config.adaptation.build().merge(merged)
        return cls(EncoderSpec.of(config), merged)

    def forward(self, images: Tensor) -> Tensor:
        """Features of images that have the encoder's own size; :meth:`encode` takes any others.

        Args:
            images: (B, channels, image_size, image_size), whole numbers in 0..255 of any type, or
                floating-point numbers in [0, 1].

        Returns:
            (B, dim) float features.

        Raises:
            TypeError: this is no tensor of numbers.
            ValueError: the images have another shape, or values out of range.
        """
        images = checked_batch(images, self.spec.channels, self.spec.image_size)
        if images.dtype == torch.uint8:
            images = images.float() / 255
        images = images.to(self._weight.dtype)
        features: Tensor = self.backbone(normalise(images, self.spec.normalise))
        return features

    @property
    def _weight(self) -> Tensor:
        """One of the weights, for the device and type of all."""
        weights = itertools.chain(self.parameters(), self.buffers())
        return next((w for w in weights if w.is_floating_point()), torch.empty(0))

    def preprocess(self, image: AnyImage) -> Tensor:
        """One image as the encoder takes it, made exactly as training made its images.

        Files and PIL images are turned as their EXIF data says; all are cropped to their middle
        square and resized by PIL, to the same pixels whatever they are. Images that training
        resized as arrays (`data=digits`, `cifar10`, `cifar100` and `stl10` in another size than
        their own) may differ by some grey levels at sharp edges. Scaling by mean and deviation is
        part of the encoder itself.

        Args:
            image: a file's path; a PIL image; an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4);
                or a tensor (H, W), (1, H, W), (3, H, W) or (4, H, W). Arrays and tensors hold whole
                numbers in 0..255 or floating-point numbers in [0, 1].

        Returns:
            uint8, (channels, image_size, image_size), on the CPU.

        Raises:
            OSError: the file cannot be read.
            TypeError: the image is of another kind.
            ValueError: the file holds no image, or a shape or value is not allowed.

        Examples:
            >>> encoder(encoder.preprocess("cat.jpg")[None]).shape
            torch.Size([1, 512])
        """
        return square_image(image, self.spec.image_size, self.spec.channels)

    @torch.no_grad()
    def encode(
        self,
        images: Tensor | NDArray[np.generic] | Iterable[AnyImage],
        batch_size: int = 256,
        progress: Callable[[int, int | None], None] | bool | None = None,
    ) -> Tensor:
        """Features of many images, of any sizes, in their order.

        They are made in evaluation mode; the modes of all modules stay as they are.

        Args:
            images: what :meth:`preprocess` takes, any number of them; or a tensor (N, C, H, W) or
                an array (N, H, W, C). An iterable is read batch by batch.
            progress: True shows it on stderr; a function is called after each batch with the number
                of images done and their total (None where it is not known).

        Returns:
            (N, dim) float32, on the CPU.

        Raises:
            OSError: a file cannot be read.
            TypeError: something is no image.
            ValueError: there are no images, or one cannot be used; the text says which.

        Examples:
            >>> features = encoder.encode(sorted(Path("photos").glob("*.jpg")), progress=True)
        """
        device, encoder = self._weight.device, self._evaluating()
        features = [
            encoder(few.to(device)).float().cpu()
            for batch in batches(images, self.preprocess, batch_size, progress)
            for few in image_batches(batch, batch_size, device)
        ]
        if not features:
            raise ValueError("no images to encode")
        return torch.cat(features)

    def _evaluating(self) -> Self:
        """The encoder in evaluation mode; where a module trains, a copy with the same tensors.

        A change of modes would be seen by other threads that train or encode meanwhile.
        """
        if not any(module.training for module in self.modules()):
            return self
        tensors = {id(tensor): tensor for tensor in (*self.parameters(), *self.buffers())}
        return copy.deepcopy(self, tensors).eval()


def save_encoder(path: str | Path, encoder: Encoder, **about: Any) -> None:
    """Writes `path` (safetensors) and, beside it with `.json`, the spec and `about`.

    Of users' packages, the spec names only that of the backbone. It does not name the source of
    the initial weights.

    Raises:
        OSError: a file cannot be written; the old encoder is still there.
    """
    path = Path(path)
    description = path.with_suffix(".json")
    weights = {k: v.detach().cpu().contiguous() for k, v in encoder.backbone.state_dict().items()}
    model = encoder.spec.model
    about_model = {"model": _without_first_weights(model), "plugins": _users_package(model)}
    spec = encoder.spec.model_copy(update=about_model)
    with replacing(path) as temporary:
        save_plain(temporary, weights)
        digest = file_sha256(temporary)
        described = {"spec": spec.model_dump(mode="json"), "about": about, "weights_sha256": digest}
        write_description(upcoming(description), described)
    take_upcoming(description)


def tensors_sha256(network: nn.Module) -> str:
    """The SHA-256 of a network's tensors and their names, in hexadecimal."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def load_encoder(
    path: str | os.PathLike[str], device: str | torch.device = "cpu", plugins: Sequence[str] = ()
) -> Encoder:
    """Reads an encoder back.

    Args:
        path: a run folder or its `Result`, or an `encoder.safetensors` with its `encoder.json`
            beside it.
        device: where to put the encoder; auto takes a GPU where one is visible.
        plugins: your packages with the backbone. The file cannot have others imported: importing a
            package runs its code.

    Returns:
        The encoder in evaluation mode, without gradients.

    Raises:
        ConfigError: there is no such device.
        FileNotFoundError: one of the two files is missing.
        ValueError: a file is damaged, the description is wrong, its backbone is of a package that
            is not installed or that `plugins` does not name, or the weights do not fit it.
    """
    device = resolve_device(device)
    path = encoder_file(path)
    description = path.with_suffix(".json")
    for file in (path, description):
        if not file.is_file():
            raise FileNotFoundError(
                f"{file}: no such file (a finished run leaves it in its run folder)"
            )
    described = read_description(description)
    digest = described.get("weights_sha256")
    if digest is not None and digest != file_sha256(path):
        raise ValueError(f"{path} is damaged: its checksum is not that in {description}; {REMEDY}")
    check_named(description, described["spec"].get("plugins", ()), plugins)
    try:
        spec = parse(EncoderSpec, described["spec"])
        _check_size(spec, path)
        encoder = Encoder(spec)
    except ConfigError as error:
        raise ConfigError(f"{description}: {error}") from None
    try:
        encoder.backbone.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit its description: {error}") from None
    return encoder.to(device)


def _check_size(spec: EncoderSpec, weights: Path) -> None:
    """Refuses a network with more numbers than its file has bytes, before it takes any memory."""
    count = state_size(lambda: build_backbone(spec.model, spec.channels)).numbers
    size = weights.stat().st_size
    if count > size:
        raise ConfigError(f"its network has {count:,} numbers, and {weights.name} {size:,} bytes")


def encoder_of(config: OfSavedEncoder, device: str | torch.device = "cpu") -> Encoder:
    """The encoder that a command's `run` names, as :func:`load_encoder` reads it.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    return encoder_at(f"run={config.run}", config.encoder, device, config.plugins)


def encoder_at(
    named: str, file: Path, device: str | torch.device = "cpu", plugins: Sequence[str] = ()
) -> Encoder:
    """:func:`load_encoder` of what a configuration names, "<key>=<value>".

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    try:
        return load_encoder(file, device, plugins)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(f"{named}: {' '.join(str(error).split())}") from None


def _without_first_weights(model: ModelConfig) -> ModelConfig:
    options = {*model.plugin.first_weights} & {*model.options}
    return model.model_copy(update=dict.fromkeys(options)) if options else model


def _users_package(model: ModelConfig) -> tuple[str, ...]:
    """The user's package that the backbone is from; none for this package's own."""
    package = model.plugin.__module__.removesuffix(f".{model.room.name}.{model.name}")
    return () if f"{package}.{model.room.name}" == model.room.package else (package,)
