"""Features of images as they are: no augmentation, no gradients, evaluation mode."""

import torch
from torch import Tensor, nn

from orchestra_flwr.config import Normalisation
from orchestra_flwr.models.image_batches import image_batches
from orchestra_flwr.models.normalisation import normalise


@torch.no_grad()
def clean_features(
    backbone: nn.Module, images: Tensor, by: Normalisation, batch_size: int
) -> Tensor:
    """Features of all images, in their order; the backbone is left in evaluation mode.

    Args:
        backbone: maps normalised images (B, C, H, W) to features; its statistics do not move.
        images: (n, C, H, W) uint8 on its device, n >= 1.

    Returns:
        (n, dim) float32.
    """
    backbone.eval()
    batches = image_batches(images, batch_size, images.device)
    return torch.cat([backbone(normalise(batch.float() / 255, by)).float() for batch in batches])
