"""How many images pass a network at once where nothing is trained."""

import torch
from torch import Tensor

# On a CPU: 256 images of 64 x 64 pixels, 20 of 224 x 224. More do not fit its caches: with 256 of
# 224 x 224 EfficientNet-Lite0 takes 1.5 times as long and eleven times the memory, ResNet-18
# 1.2 and nine times (benchmarks/backbones.py features).
MAX_PIXELS = 2**20


def image_batches(images: Tensor, batch_size: int, device: torch.device) -> tuple[Tensor, ...]:
    """Images in batches that a device passes quickly, in their order.

    Args:
        images: (N, C, H, W).
        batch_size: most images of a batch.
        device: of the network.
    """
    if device.type == "cpu":
        height, width = images.shape[-2:]
        batch_size = min(batch_size, max(1, MAX_PIXELS // (height * width)))
    return torch.split(images, batch_size)
