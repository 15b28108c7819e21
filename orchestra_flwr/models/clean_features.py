"""Features of images as they are: no augmentation, no gradients, evaluation mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from orchestra_flwr.config import Config, Normalisation
from orchestra_flwr.models.normalisation import normalise


@torch.no_grad()
def clean_features(
    backbone: nn.Module, images: Tensor, by: Normalisation, batch_size: int
) -> Tensor:
    """Features of all images, in their order; the backbone is left in evaluation mode.

    Args:
        backbone: maps normalised images (B, C, H, W) to features; its statistics do not move.
        images: (n, C, H, W) uint8 on its device, n >= 1.
        by: how the images are normalised.
        batch_size: images at once.

    Returns:
        (n, dim) float32.
    """
    backbone.eval()
    batches = torch.split(images, batch_size)
    return torch.cat([backbone(normalise(batch.float() / 255, by)).float() for batch in batches])


def check_statistics(config: Config, reader: str) -> None:
    """Refuses clean features of the received backbone where its BatchNorm has initial statistics.

    With `privacy.clip` statistics are not averaged (`training.learner`), so those that the server
    sends stay as they began. With `merging=fedbn` clients have statistics of their own.

    Args:
        config: of the run.
        reader: the options that take such features, "<key>=<value>".

    Raises:
        ValueError: names them, and what to do.
    """
    clip, model = config.privacy.clip, config.model
    if clip is None or config.merging.plugin.local_norms or not model.has_batch_norm:
        return
    hint = "has none" if model.plugin.obeys_norm else "and a model that obeys it have none"
    raise ValueError(
        f"privacy.clip={clip:g}: must be null with {reader} and BatchNorm (model={model.name}), "
        f"whose statistics are not averaged with a clip; model.norm=group {hint}"
    )
