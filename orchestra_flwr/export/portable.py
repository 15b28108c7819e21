"""An encoder as one network of ordinary layers, from a photograph's pixels to features.

All its operations exist in every ONNX runtime.
"""

from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn

from orchestra_flwr.models import Encoder
from orchestra_flwr.models.normalisation import normalise

LEVELS = 255  # the largest value of an image's pixel


class PortableEncoder(nn.Module):
    """uint8 images in, features out: resizing, normalisation and backbone.

    Attributes:
        image_size: height and width of the images that it takes; None: any, which it resizes.

    Args:
        encoder: is copied to the CPU.
        any_size: whether it takes images of any size; otherwise only of the encoder's own size.
    """

    def __init__(self, encoder: Encoder, *, any_size: bool = True) -> None:
        super().__init__()
        size = encoder.spec.image_size
        self.image_size = None if any_size else size
        self._size = size
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
        """Images of noise, `side` pixels square; None: its own size, or half of it if any fits.

        From half the size the products are exact for even sizes, but in the outermost rows, so that
        all runtimes round alike: else a value in the middle of two levels may become either.
        """
        high = side or self.image_size or self._size // 2
        wide = side or self.image_size or self._size // 2 + 16
        generator = torch.Generator().manual_seed(seed)
        shape = (batch, self.channels, high, wide)
        return torch.randint(0, LEVELS + 1, shape, generator=generator, dtype=torch.uint8)


class SquareResize(nn.Module):
    """The middle square of images of any size, bicubic with antialiasing.

    The result is that of the resizing of training images (PIL's `ImageOps.fit`), rounded after each
    pass as there; one pixel in some hundreds is a grey level off, because PIL's weights are whole
    numbers. Pillow 13 makes the passes of some tall images in the other order: next to pixels
    clamped to 0 or 255 in between, the difference may be larger.
    Rows and columns are each one product with a matrix of weights, because few runtimes resize with
    antialiasing, and those that do differ in their bits.

    Args:
        size: height and width of the result in pixels.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) float in 0..255 to (B, C, size, size), whole numbers in the same range."""
        height, width = images.shape[2:]
        short = cast(int, torch.sym_min(height, width))
        rows = resize_weights(height, short, self.size)
        columns = resize_weights(width, short, self.size)
        narrow = _in_levels(images @ columns.mT)  # as PIL does between its two passes
        return _in_levels(rows @ narrow)


def _in_levels(values: Tensor) -> Tensor:
    """The nearest grey levels, upwards from the middle between two, as PIL rounds."""
    return (values + 0.5).floor().clamp(0, LEVELS)


def resize_weights(length: int, used: int, size: int) -> Tensor:
    """The weights of a row's pixels in each pixel of the resized row.

    The cubic filter with a = -.5 (Keys, "Cubic convolution interpolation", 1981), as wide as a new
    pixel where the image shrinks.

    Args:
        length: pixels of the row.
        used: how many of them, in the middle, are resized; the filter also sees their neighbours.
        size: pixels of the result.

    Returns:
        (size, length) float32; each row sums to 1.
    """
    scale = used / size
    centres = (length - used) / 2 + scale * (torch.arange(size) + 0.5)
    reach = cast(float, torch.sym_max(scale, 1.0))
    x = (torch.arange(length) + 0.5 - centres[:, None]).abs() / reach
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
    return weights / weights.sum(1, keepdim=True)
