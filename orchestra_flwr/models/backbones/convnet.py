"""A small network for digits and for runs on a CPU."""

from typing import Any

from torch import Tensor, nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.models.backbones import Backbone
from orchestra_flwr.models.convolution import Convolution
from orchestra_flwr.models.norm_layers import norm_layer


class ConvNet(Backbone):
    """Four convolutions, which halve the image twice: 16 * width features.

    The last maps are averaged by quarters, which keeps where a stroke is. With BatchNorm the
    features are centred and scaled, so that their cosines compare what differs between images.
    """

    def __init__(self, settings: Any, model: ModelConfig, channels: int) -> None:
        super().__init__(settings, model, channels)
        width, norm = model.width, norm_layer(model.norm, model.groups)
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
        if model.norm == "batch":
            layers.append(nn.BatchNorm1d(self.dim, affine=False))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) normalised images to (B, dim) features."""
        features: Tensor = self.layers(x)
        return features
