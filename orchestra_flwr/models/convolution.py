"""A convolution that is as fast for few pixels as for many, on a CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# torch computes float32 products with MKL, at half of oneDNN's speed on processors of AMD.
ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Convolution(nn.Conv2d):
    """An `nn.Conv2d` without a bias; what it computes differs in the order of additions only.

    For few pixels (a late layer's 4 x 4 maps in a batch of 16) oneDNN's convolution reorders the
    weights each time: 20 ms for their gradient, where a product of matrices takes 5. So where the
    result has no more pixels than channels, both passes are products with the image's patches. On a
    GPU it is torch's own convolution, as in exported networks, whose runtime chooses the algorithm.

    Args:
        stride: in pixels.
        padding: of zeros, in pixels.
        options: of `nn.Conv2d`, for libraries that make another layer of the same class.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        stride: int = 1,
        padding: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(inputs, outputs, size, stride, padding, **{"bias": False, **options})
        if self.bias is not None or self.groups > 1:
            raise ValueError("a convolution here has no bias and no groups")

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H', W')."""
        if x.is_cuda or torch.compiler.is_compiling():
            return super().forward(x)
        size, stride, padding = self.kernel_size[0], self.stride[0], int(self.padding[0])
        height, width = ((side + 2 * padding - size) // stride + 1 for side in x.shape[2:])
        if not 0 < len(x) * height * width <= self.out_channels:
            return super().forward(x)
        weight = self.weight
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            x, weight = x.to(dtype), weight.to(dtype)
        y: Tensor = _Products.apply(x, weight, stride, padding)
        return y


class _Products(torch.autograd.Function):
    """A convolution and its gradients as three products of matrices.

    Kernels are rows in the order of channels-last weights: kernel positions, channels innermost.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        windows = _windows(x, weight.shape[2], stride, padding)
        y = _product(windows.flatten(3).flatten(0, 2), _rows(weight))
        return y.view(*windows.shape[:3], -1).permute(0, 3, 1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        outputs, inputs, size, _ = weight.shape
        windows = _windows(x, size, ctx.stride, ctx.padding)
        pixels = _rows(gradient).reshape(-1, outputs)
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            parts = _product(pixels, _rows(weight).T).view(windows.shape)
            to_x = _summed_windows(parts, x, ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            patches = windows.flatten(3).flatten(0, 2)
            kernels = _product(pixels.T, patches.T).view(outputs, size, size, inputs)
            to_weight = kernels.permute(0, 3, 1, 2)
        return to_x, to_weight, None, None


def _rows(images: Tensor) -> Tensor:
    """(N, C, H, W) to (N, H * W * C)."""
    return images.permute(0, 2, 3, 1).flatten(1)


def _windows(x: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """(B, H', W', size, size, C): the patch of `x` that each pixel of the result comes from."""
    around = (0, 0, padding, padding, padding, padding)
    windows = F.pad(x.permute(0, 2, 3, 1), around).unfold(1, size, stride).unfold(2, size, stride)
    return windows.permute(0, 1, 2, 4, 5, 3).contiguous()


def _summed_windows(parts: Tensor, x: Tensor, stride: int, padding: int) -> Tensor:
    """The sum over all windows at each pixel of `x`; the transpose of :func:`_windows`."""
    batch, channels, high, wide = x.shape
    _, height, width, size, _, _ = parts.shape
    padded = parts.new_zeros(batch, high + 2 * padding, wide + 2 * padding, channels)
    for i in range(size):
        for j in range(size):
            rows = slice(i, i + stride * (height - 1) + 1, stride)
            columns = slice(j, j + stride * (width - 1) + 1, stride)
            padded[:, rows, columns] += parts[:, :, :, i, j]
    inside = padded[:, padding : padding + high, padding : padding + wide]
    return inside.contiguous().permute(0, 3, 1, 2)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right.T."""
    if ONEDNN and left.dtype == torch.float32:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
        return result
    return left @ right.T
