"""Backbones: images to feature vectors. Each has `dim`, the width of its features."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.models.convolution import Convolution

Norm = Callable[[int], nn.Module]


def _norm(name: str) -> Norm:
    """BatchNorm, or GroupNorm with groups of 8 channels (no statistics of other images)."""
    return (
        nn.BatchNorm2d
        if name == "batch"
        else lambda channels: nn.GroupNorm(channels // 8, channels)
    )


class Backbone(nn.Module):
    """Images (B, channels, H, W), normalised, to features (B, dim)."""

    dim: int


class BasicBlock(nn.Module):
    """Residual block of two 3x3 convolutions (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = Convolution(inputs, outputs, 3, stride, padding=1)
        self.norm1 = norm(outputs)
        self.conv2 = Convolution(outputs, outputs, 3, padding=1)
        self.norm2 = norm(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(Convolution(inputs, outputs, 1, stride), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        y = self.relu(self.norm1(self.conv1(x)))
        z: Tensor = self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))
        return z


class ResNet18(Backbone):
    """ResNet-18 for small images: 3x3 stem with stride 1, no max-pool, 8 * width features.

    With 3 channels, width 64 and BatchNorm its state has 11,178,452 elements, batch counters
    included, as in the Orchestra paper's experiments.
    """

    def __init__(self, channels: int, width: int, norm: Norm) -> None:
        super().__init__()
        self.dim = 8 * width
        self.stem = nn.Sequential(
            Convolution(channels, width, 3, padding=1), norm(width), nn.ReLU(inplace=True)
        )
        blocks: list[nn.Module] = []
        inputs = width
        for stage in range(4):
            outputs = width << stage
            for stride in (1 if stage == 0 else 2, 1):
                blocks.append(BasicBlock(inputs, outputs, stride, norm))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) normalised images to (B, dim) features."""
        features: Tensor = self.blocks(self.stem(x))
        return features.mean((2, 3))


class ConvNet(Backbone):
    """Four convolutions for digits and CPU runs, halved twice: 16 * width features.

    The last maps are averaged in quarters, not as a whole: in small pictures of signs it matters
    where a stroke is. With BatchNorm the features are centred and scaled, so that cosines between
    them compare what differs between images.
    """

    def __init__(self, channels: int, width: int, norm: Norm) -> None:
        super().__init__()
        self.dim = 16 * width
        layers: list[nn.Module] = []
        inputs = channels
        for outputs, stride in ((width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2)):
            layers += [
                Convolution(inputs, outputs, 3, stride, padding=1),
                norm(outputs),
                nn.ReLU(inplace=True),
            ]
            inputs = outputs
        layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten()]
        if norm is nn.BatchNorm2d:
            layers.append(nn.BatchNorm1d(self.dim, affine=False))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) normalised images to (B, dim) features."""
        features: Tensor = self.layers(x)
        return features


BACKBONES: dict[str, Callable[..., Backbone]] = {"resnet18": ResNet18, "convnet": ConvNet}


def build_backbone(model: ModelConfig, channels: int) -> Backbone:
    """The backbone named by the configuration, freshly initialised, for images of `channels`.

    Its weights lie channels-last, and so does all that it computes: convolutions then need not
    reorder what they read and write.
    """
    backbone: Backbone = partial(BACKBONES[model.name], norm=_norm(model.norm))(
        channels, model.width
    )
    return backbone.to(memory_format=torch.channels_last)
