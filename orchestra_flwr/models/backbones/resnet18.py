"""ResNet-18 for small images."""

from typing import Any

from torch import Tensor, nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.models.backbones import Backbone
from orchestra_flwr.models.convolution import Convolution
from orchestra_flwr.models.norm_layers import Norm, norm_layer


class ResNet18(Backbone):
    """A 3x3 stem with stride 1, no max-pool, four stages of two blocks: 8 * width features.

    He et al., 2016 (https://arxiv.org/abs/1512.03385). With 3 channels, width 64 and BatchNorm its
    state has 11,178,452 elements, batch counters included, as in the Orchestra paper's experiments.
    """

    def __init__(self, settings: Any, model: ModelConfig, channels: int) -> None:
        super().__init__(settings, model, channels)
        width, norm = model.width, norm_layer(model.norm, model.groups)
        self.dim = 8 * width
        self.stem = nn.Sequential(
            Convolution(channels, width, 3, padding=1), norm(width), nn.ReLU(inplace=True)
        )
        blocks: list[nn.Module] = []
        inputs = width
        for stage in range(4):
            outputs = width << stage
            for stride in (1 if stage == 0 else 2, 1):
                blocks.append(_BasicBlock(inputs, outputs, stride, norm))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) normalised images to (B, dim) features."""
        features: Tensor = self.blocks(self.stem(x))
        return features.mean((2, 3))


class _BasicBlock(nn.Module):
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
