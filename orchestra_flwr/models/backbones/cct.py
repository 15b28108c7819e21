"""CCT: a small transformer over the maps of two convolutions.

Hassani et al., "Escaping the Big Data Paradigm with Compact Transformers", arXiv 2104.05704.
"""

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from orchestra_flwr.config import ModelConfig, Section
from orchestra_flwr.models.backbones import Backbone
from orchestra_flwr.models.convolution import Convolution
from orchestra_flwr.models.transformer import attention, check_heads


class CCT(Backbone):
    """CCT-4/3x2 with its defaults: `width` features, whatever `model.norm` says.

    Convolutions turn an image into tokens with learned positions. Their outputs are averaged with
    learned weights (sequence pooling). All norms are LayerNorm, so an image's features do not
    depend on its batch. With 3 channels, width 128 and images of 64 x 64 pixels there are 505,409
    parameters.

    The published network has dropout of attention and of branches (.1). There is none here: it
    draws from torch's global generator, and the same seed would no longer give the same bits.

    Raises:
        ValueError: the heads do not divide the width.
    """

    class Settings(Section):
        layers: int = Field(4, ge=1, le=64)  # of the transformer
        heads: int = Field(2, ge=1, le=64)  # of attention in each; they divide the width
        convolutions: int = Field(2, ge=1, le=4)  # each halves height and width of the image
        image_size: int = Field(32, ge=8, le=512)  # height and width of the images, in pixels

    obeys_norm: ClassVar[bool] = False

    def __init__(self, settings: Settings, model: ModelConfig, channels: int) -> None:
        super().__init__(settings, model, channels)
        width = self.dim = model.width
        check_heads(width, settings.heads)
        self.image_size = side = settings.image_size
        blocks: list[nn.Module] = []
        inputs = channels
        for left in reversed(range(settings.convolutions)):
            outputs = width if left == 0 else max(width >> left, 1)
            blocks += [
                Convolution(inputs, outputs, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(3, stride=2, padding=1),
            ]
            inputs, side = outputs, (side + 1) // 2
        self.tokenizer = nn.Sequential(*blocks)
        self.positions = nn.Parameter(torch.zeros(side * side, width))
        self.layers = nn.Sequential(
            *(_Layer(width, settings.heads) for _ in range(settings.layers))
        )
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, 1)
        self.apply(_initialise)
        nn.init.trunc_normal_(self.positions, std=0.2)

    @classmethod
    def check(cls, config: Any) -> None:
        """Refuses images of another size, and heads that do not divide the width."""
        super().check(config)
        check_heads(config.model.width, config.model.settings.heads)

    def layer_groups(self) -> list[set[str]]:
        """The pooling, which follows the last norm, belongs to the last layer."""
        *others, last, score = super().layer_groups()
        return [*others, last | score]

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, image_size, image_size) normalised images to (B, dim) features.

        Raises:
            ValueError: the images have another size.
        """
        if tuple(x.shape[2:]) != (self.image_size, self.image_size):
            raise ValueError(
                f"model.image_size={self.image_size}: images of {x.shape[2]} x {x.shape[3]} pixels"
            )
        tokens = self.tokenizer(x).flatten(2).mT + self.positions
        tokens = self.norm(self.layers(tokens))
        weights = self.score(tokens).softmax(dim=1)
        features: Tensor = (weights.mT @ tokens).squeeze(1)
        return features


class _Layer(nn.Module):
    """Attention and an MLP; the second LayerNorm is on the residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, tokens, width) to the same."""
        tokens = tokens + self.projection(attention(self.qkv(self.norm1(tokens)), self.heads))
        tokens = self.norm2(tokens)
        result: Tensor = tokens + self.mlp(tokens)
        return result


def _initialise(module: nn.Module) -> None:
    """As the paper's code does."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight)
    elif isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
