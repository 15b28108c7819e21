"""Masked autoencoder: encode a quarter of an image's patches, reconstruct the others.

He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022 (arXiv 2111.06377), in the
size that Dec-SSL (arXiv 2210.10947) has for small images.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from orchestra_flwr.config import Config, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods import Batch, Role, Step
from orchestra_flwr.methods.families import OneBackbone
from orchestra_flwr.models.backbones.vit_tiny import ViTTiny
from orchestra_flwr.models.precision import network_pass
from orchestra_flwr.models.transformer import DEVIATION, blocks, initialise, patches_of

AS_IT_IS = Recipe(crop_scale=None, flip=0, jitter_p=0, gray_p=0, blur_p=0)
CROPPED = Recipe(crop_scale=(0.2, 1.0), jitter_p=0, gray_p=0, blur_p=0)  # the MAE paper's


def masked_error(predicted: Tensor, patches: Tensor, masked: Tensor) -> Tensor:
    """Mean squared error of the pixels of masked patches, a scalar; others do not count.

    Args:
        predicted: (B, N, pixels).
        patches: (B, N, pixels).
        masked: (B, N) bool, the same number in each image, at least one.
    """
    errors = (predicted - patches).square().mean(2) * masked
    return (errors.sum(1) / masked.sum(1)).mean()


def random_order(batch: int, patches: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random order of each image's patches, (B, N), and each patch's place in it, (B, N)."""
    draws = torch.rand(batch, patches, generator=generator, device=generator.device)
    order = draws.argsort(dim=1, stable=True)
    return order, order.argsort(dim=1)


def rows_at(tokens: Tensor, places: Tensor) -> Tensor:
    """The (B, n, dim) of the (B, N, dim) tokens that are at the (B, n) places."""
    return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[2]))


class _Decoder(nn.Module):
    """Decodes tokens of all patches, class token first, to pixels; as wide as the encoder."""

    def __init__(self, backbone: ViTTiny, depth: int) -> None:
        super().__init__()
        dim, settings = backbone.dim, backbone.settings
        self.mask_token = nn.Parameter(torch.empty(dim))
        self.positions = nn.Parameter(torch.empty(1 + settings.patches, dim))
        self.blocks = blocks(depth, dim, settings.heads)
        self.pixels = nn.Linear(dim, backbone.embedding.in_features)
        self.apply(initialise)
        for parameter in (self.mask_token, self.positions):
            nn.init.normal_(parameter, std=DEVIATION)

    @network_pass
    def forward(self, encoded: Tensor, places: Tensor) -> Tensor:
        """(B, N, pixels) of all patches.

        Args:
            encoded: (B, 1 + n, dim), the class token and the visible patches in their order.
            places: (B, N) each patch's place in the order; patches from place n on are masked.
        """
        first, visible = encoded[:, :1], encoded[:, 1:]
        missing = places.shape[1] - visible.shape[1]
        masks = self.mask_token.to(visible.dtype).expand(len(visible), missing, -1)
        patches = rows_at(torch.cat([visible, masks], dim=1), places)
        decoded = self.blocks(torch.cat([first, patches], dim=1) + self.positions)
        pixels: Tensor = self.pixels(decoded[:, 1:])
        return pixels


class MAE(OneBackbone):
    """A transformer that encodes visible patches, and a small one that predicts the masked ones.

    The batch's generator chooses the masked patches. The state consists of parameters alone.
    """

    class Settings(Section):
        mask_ratio: float = Field(0.75, gt=0, lt=1)  # of an image's patches
        decoder_depth: int = Field(4, ge=1, le=64)  # blocks
        augment: bool = False  # crops and flips, as the MAE paper; false: images as they are

    roles: ClassVar = {"decoder": Role.SHARED}

    settings: Settings
    backbone: ViTTiny

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.decoder = _Decoder(self.backbone, self.settings.decoder_depth)

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses a backbone that is no transformer, other views, and a mask of all or nothing."""
        super().check(config)
        if not issubclass(config.model.plugin, ViTTiny):
            raise ValueError(
                f"model={config.model.name}: must be vit_tiny with method={config.method.name}, "
                "which masks patches"
            )
        if config.method.views != "default":
            raise ValueError(
                f"method.views={config.method.views}: must be default with "
                f"method={config.method.name}, which sees images as they are (method.augment)"
            )
        patches = config.model.settings.patches
        if not 0 < _visible(patches, config.method.settings.mask_ratio) < patches:
            raise ValueError(
                f"method.mask_ratio={config.method.settings.mask_ratio:g}: must leave some of the "
                f"{patches} patches visible, and mask some"
            )

    def recipes(self) -> Sequence[Recipe]:
        """One view: the image itself, or a crop of it."""
        return (CROPPED,) if self.settings.augment else (AS_IT_IS,)

    def loss(self, batch: Batch) -> Step:
        """The error of the predicted patches; pixels are not normalised patch by patch."""
        patches = patches_of(batch.views[0], self.backbone.settings.patch)
        order, places = random_order(len(patches), patches.shape[1], batch.generator)
        visible = _visible(patches.shape[1], self.settings.mask_ratio)
        tokens = rows_at(self.backbone.tokens(patches), order[:, :visible])
        encoded = self.backbone.encode(tokens)
        predicted = self.decoder(encoded, places)
        reconstruction = masked_error(predicted, patches, places >= visible)
        return Step({"reconstruction": reconstruction}, {"backbone": (encoded[:, 0],)})


def _visible(patches: int, mask_ratio: float) -> int:
    # Rounded first: in floats 256 * (1 - .9) is a little less than 25.6, 10 * (1 - .9) than 1.
    return int(round(patches * (1 - mask_ratio), 6))
