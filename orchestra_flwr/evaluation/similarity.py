"""Alignment and uniformity: how good an encoder is, without any label (section 5 of the paper)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from orchestra_flwr.config import AugmentationConfig, Normalisation
from orchestra_flwr.data import SIMCLR, augment
from orchestra_flwr.evaluation.features import evaluation_mode
from orchestra_flwr.models import Backbone, normalise

TEMPERATURE = 0.2  # tau of the uniformity, as in figure 4
UNIFORMITY_WEIGHT = 0.2  # of the uniformity in the score, as in figure 4
ROWS = 4096  # similarities are held for so many images at a time


@dataclass(frozen=True)
class Similarities:
    """What a client reports of its representations.

    Attributes:
        alignment: mean cosine of an image and an augmentation of it, -1 to 1.
        uniformity: spread of the images, -1 / tau (all the same) to 1 / tau.
    """

    alignment: float
    uniformity: float

    @property
    def score(self) -> float:
        """Align + 0.2 Unif, by which hyperparameters are chosen without labels."""
        return self.alignment + UNIFORMITY_WEIGHT * self.uniformity


def alignment(features: Tensor, augmented: Tensor) -> float:
    """Mean cosine between (N, dim) features of images and those of their augmentations (eq. 5)."""
    return float(cosine_similarity(features, augmented, dim=1).mean(dtype=torch.float64))


def uniformity(features: Tensor, temperature: float = TEMPERATURE) -> float:
    """-E_x log E_y exp(cos(x, y) / temperature) over (N, dim) features (equation 5).

    y runs over all images, x among them, as in the equation.
    """
    unit = normalize(features.float(), dim=1)
    logs = [(rows @ unit.T / temperature).logsumexp(1) for rows in torch.split(unit, ROWS)]
    mean = torch.cat(logs).mean(dtype=torch.float64)
    return float(torch.tensor(len(unit), dtype=torch.float64).log() - mean.cpu())


def similarities(
    backbone: Backbone,
    images: Tensor,
    augmentation: AugmentationConfig,
    generator: torch.Generator,
    batch_size: int,
    *,
    by: Normalisation,
) -> Similarities:
    """Alignment and uniformity of a backbone on one client's images, in evaluation mode.

    Equation 5 pairs an image with an augmentation of it; SimCLR's augmentation is drawn whatever
    the method, so that methods can be compared. (The published code pairs two augmentations.)

    Args:
        backbone: maps normalised images (B, C, H, W) to features (B, dim).
        images: (N, C, H, W) uint8, N >= 1.
        augmentation: limits that the images set.
        generator: draws the augmentations; on the images' device.
        batch_size: images at once.
        by: how they are normalised, `data.normalise`.
    """
    recipe = SIMCLR.limited(augmentation)
    plain, augmented = [], []
    with evaluation_mode(backbone), torch.inference_mode():
        for batch in torch.split(images, batch_size):
            plain.append(backbone(normalise(batch.float() / 255, by)))
            view = augment(batch, [recipe], generator).images[0]
            augmented.append(backbone(normalise(view, by)))
        features = torch.cat(plain).float()
        return Similarities(alignment(features, torch.cat(augmented).float()), uniformity(features))
