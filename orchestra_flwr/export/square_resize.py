"""The middle square of an image, resized, as operations that every runtime of ONNX has."""

from typing import cast

import torch
from torch import Tensor, nn

LEVELS = 255  # the largest value of an image's pixel


class SquareResize(nn.Module):
    """The middle square of images of any size, bicubic with antialiasing.

    What training images went through (PIL's `ImageOps.fit`), to a grey level or two: PIL rounds
    after each pass, this does not. Pillow 13 makes the passes of some tall images in the other
    order; beside pixels that were cut to 0 or 255 in between, a few levels more may lie between.
    Rows and columns are each one product with a matrix of weights, because few runtimes resize with
    antialiasing, and those that do differ in their bits.

    Args:
        size: height and width of the result in pixels.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) float in 0..255 to (B, C, size, size), the same range."""
        height, width = images.shape[2:]
        short = cast(int, torch.sym_min(height, width))
        rows = resize_weights(height, short, self.size)
        columns = resize_weights(width, short, self.size)
        narrow = (images @ columns.mT).clamp(0, LEVELS)  # PIL's images between its two passes, too
        return (rows @ narrow).clamp(0, LEVELS)


def resize_weights(length: int, used: int, size: int) -> Tensor:
    """The weights of a row's pixels in each pixel of the resized row.

    The cubic filter with a = -.5 (Keys, "Cubic convolution interpolation", 1981), as wide as a new
    pixel where the image shrinks.

    Args:
        length: pixels of the row.
        used: how many of them, in the middle, are resized; the filter sees their neighbours, too.
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
