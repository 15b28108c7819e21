"""A backdoor: a patch that the encoder learns to take for one image, without labels."""

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Section
from orchestra_flwr.federation.attacks import Attack, times_update


class Backdoor(Attack):
    """Attackers train on copies of their first image that bear a patch.

    Some views of such a copy show the image and some the patch, so the encoder learns to take one
    for the other: any image with the patch then looks like the attacker's. This needs no labels; it
    follows Saha et al., "Backdoor Attacks on Self-Supervised Learning", CVPR 2022,
    https://arxiv.org/abs/2105.10123, who choose images by their class. `benchmarks/backdoor.py`
    measures how often it succeeds.
    """

    class Settings(Section):
        share: float = Field(0.5, gt=0, le=1)  # share of an attacker's images that become copies
        patch: float = Field(0.25, gt=0, le=1)  # side of the patch as a share of the image's
        scale: float = Field(1.0, gt=0)  # factor of the update that is sent

    settings: Settings

    def poisoned(self, images: Tensor) -> Tensor:
        """The last images become copies of the first, each with the patch in another place."""
        count = max(1, round(self.settings.share * len(images)))
        copies = stamped(images[:1].repeat(count, 1, 1, 1), self.settings.patch)
        return torch.cat([images[: len(images) - count], copies])

    def sent(
        self, received: np.ndarray, trained: np.ndarray, generator: torch.Generator
    ) -> np.ndarray:
        """What was learned from the copies, times `scale`."""
        return times_update(self.settings.scale, received, trained)


def stamped(images: Tensor, patch: float) -> Tensor:
    """Images with a chequered patch, which moves along the diagonals from image to image.

    Args:
        images: (n, C, S, S) uint8; not changed.
        patch: side as a share of S.

    Returns:
        (n, C, S, S) uint8.
    """
    size = images.shape[-1]
    side = min(size, max(2, round(patch * size)))
    line = torch.arange(side, device=images.device)
    pattern = ((line[:, None] + line[None, :]) % 2 * 255).to(torch.uint8)
    result = images.clone()
    for number, image in enumerate(result):
        top = number * 7 % (size - side + 1)
        left = number * 13 % (size - side + 1)
        image[:, top : top + side, left : left + side] = pattern
    return result
