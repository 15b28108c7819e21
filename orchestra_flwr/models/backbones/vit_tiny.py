"""A vision transformer for small images: ViT-Tiny on patches of 2 x 2 pixels.

Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021 (arXiv 2010.11929); the size is that
of Touvron et al., ICML 2021 (arXiv 2012.12877).
"""

from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from orchestra_flwr.config import Config, ModelConfig, Section
from orchestra_flwr.models.backbones import Backbone
from orchestra_flwr.models.precision import network_pass
from orchestra_flwr.models.transformer import (
    DEVIATION,
    blocks,
    check_heads,
    initialise,
    layer_norm,
    patches_of,
)


class ViTTiny(Backbone):
    """Blocks over patches and a class token, whose output is the feature: `width` features.

    With 3 channels and the default options it has 5,383,680 parameters and no buffers: its norms
    are LayerNorm; only heads obey `model.norm`.
    """

    class Settings(Section):
        image_size: int = Field(32, ge=8, le=512)  # of the images, for their patches' positions
        patch: int = Field(2, ge=1, le=512)  # height and width of a patch in pixels
        depth: int = Field(12, ge=1, le=64)  # blocks
        heads: int = Field(3, ge=1, le=64)  # of the attention; they divide model.width

        @model_validator(mode="after")
        def _patches_cover_the_image(self) -> Self:
            if self.image_size % self.patch:
                raise ValueError(
                    f"model.patch={self.patch}: must divide the images' size, {self.image_size}"
                )
            return self

        @property
        def patches(self) -> int:
            """Patches of an image."""
            return (self.image_size // self.patch) ** 2

    obeys_norm: ClassVar[bool] = False

    def __init__(self, settings: Settings, model: ModelConfig, channels: int) -> None:
        super().__init__(settings, model, channels)
        self.dim = model.width
        self.embedding = nn.Linear(channels * settings.patch**2, self.dim)
        self.positions = nn.Parameter(torch.empty(settings.patches, self.dim))
        self.class_token = nn.Parameter(torch.empty(self.dim))
        self.blocks = blocks(settings.depth, self.dim, settings.heads)
        self.norm = layer_norm(self.dim)
        self.apply(initialise)
        for parameter in (self.positions, self.class_token):
            nn.init.normal_(parameter, std=DEVIATION)

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses images of another size, and heads that do not divide the width."""
        super().check(config)
        check_heads(config.model.width, config.model.settings.heads)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) normalised images to (B, dim) features."""
        return self.encode(self.tokens(patches_of(x, self.settings.patch)))[:, 0]

    @network_pass
    def tokens(self, patches: Tensor) -> Tensor:
        """(B, N, pixels) patches, all of an image, to (B, N, dim) tokens at their places."""
        tokens: Tensor = self.embedding(patches) + self.positions
        return tokens

    @network_pass
    def encode(self, tokens: Tensor) -> Tensor:
        """(B, n, dim) tokens of any patches to (B, 1 + n, dim): the class token's output first."""
        first = self.class_token.expand(tokens.shape[0], 1, -1)  # len() fixes it in torch.export
        encoded: Tensor = self.norm(self.blocks(torch.cat([first, tokens], dim=1)))
        return encoded
