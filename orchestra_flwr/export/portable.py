"""An encoder as one network of ordinary layers, from the pixels of a photograph to features."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from orchestra_flwr.export.square_resize import LEVELS, SquareResize
from orchestra_flwr.models import Encoder
from orchestra_flwr.models.normalisation import normalise


class PortableEncoder(nn.Module):
    """uint8 images in, features out: resizing, normalisation and backbone.

    Attributes:
        image_size: height and width of the images that it takes; None: any, which it resizes.

    Args:
        encoder: it is copied, to the CPU.
        any_size: whether images of every size are taken; otherwise only those of the encoder's.
    """

    def __init__(self, encoder: Encoder, *, any_size: bool = True) -> None:
        super().__init__()
        size = encoder.spec.image_size
        self.image_size = None if any_size else size
        self.channels = encoder.spec.channels
        self.dim = encoder.dim
        self.normalisation = encoder.spec.normalise
        self.resize: nn.Module = SquareResize(size) if any_size else nn.Identity()
        self.backbone = deepcopy(encoder.backbone).cpu()
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) uint8 to (B, dim) float32."""
        pixels = self.resize(images.float()) / LEVELS
        features: Tensor = self.backbone(normalise(pixels, self.normalisation))
        return features

    def example(self, batch: int, seed: int = 0, side: int | None = None) -> Tensor:
        """Images of noise, square of `side` pixels; None: as it takes them, 48 x 64 if any size."""
        high = side or self.image_size or 48
        wide = side or self.image_size or 64
        generator = torch.Generator().manual_seed(seed)
        shape = (batch, self.channels, high, wide)
        return torch.randint(0, LEVELS + 1, shape, generator=generator, dtype=torch.uint8)
