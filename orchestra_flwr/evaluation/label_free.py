"""How good an encoder is, without any label: alignment, uniformity and RankMe."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from orchestra_flwr.config import AugmentationConfig, Normalisation
from orchestra_flwr.data import SIMCLR, augment
from orchestra_flwr.evaluation.features import effective_rank
from orchestra_flwr.evaluation.knn import SIMILARITIES_AT_ONCE
from orchestra_flwr.models import Backbone, device_of, evaluation_mode, image_batches, normalise
from orchestra_flwr.square_image import resize

TEMPERATURE = 0.2  # tau of the uniformity, as in figure 4 of the Orchestra paper
UNIFORMITY_WEIGHT = 0.2  # of the uniformity in the score, as in figure 4


@dataclass(frozen=True)
class LabelFreeScores:
    """What an encoder scores on images without labels."""

    alignment: float  # mean cosine of an image and an augmentation of it, -1 to 1
    uniformity: float  # spread of the images, -1 / tau (all the same) to 1 / tau
    effective_rank: float  # dimensions that the features fill (RankMe), 1 to min(N, dim)

    @property
    def score(self) -> float:
        """Align + 0.2 Unif, by which the Orchestra paper chooses hyperparameters."""
        return self.alignment + UNIFORMITY_WEIGHT * self.uniformity

    @staticmethod
    def ranges(dim: int) -> dict[str, tuple[float, float]]:
        """The least and the greatest value of each score, by name, for features (N, dim)."""
        spread = 1 / TEMPERATURE
        return {
            "alignment": (-1.0, 1.0),
            "uniformity": (-spread, spread),
            "effective_rank": (1.0, float(dim)),
        }

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Self:
        """The scores among all that a client reports."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    @classmethod
    def mean(cls, scores: Sequence[tuple[int, Self]]) -> Self:
        """The mean over several clients, weighted by their numbers of images."""
        total = sum(images for images, _ in scores)
        columns = zip(*(astuple(score) for _, score in scores), strict=True)
        weights = [images / total for images, _ in scores]
        return cls(*(sum(w * v for w, v in zip(weights, c, strict=True)) for c in columns))


def alignment(features: Tensor, augmented: Tensor) -> float:
    """Mean cosine between (N, dim) features of images and those of their augmentations (eq. 5)."""
    return float(cosine_similarity(features, augmented, dim=1).mean(dtype=torch.float64))


def uniformity(features: Tensor, temperature: float = TEMPERATURE) -> float:
    """-E_x log E_y exp(cos(x, y) / temperature) over (N, dim) features (equation 5).

    y runs over all images, x among them, as in the equation.
    """
    unit = normalize(features.float(), dim=1)
    rows = max(1, SIMILARITIES_AT_ONCE // len(unit))
    logs = [(x @ unit.T).div_(temperature).logsumexp(1) for x in torch.split(unit, rows)]
    mean = torch.cat(logs).mean(dtype=torch.float64)
    return float(torch.tensor(len(unit), dtype=torch.float64).log() - mean.cpu())


def label_free_scores(
    backbone: Backbone,
    images: Tensor,
    augmentation: AugmentationConfig,
    generator: torch.Generator,
    batch_size: int,
    *,
    by: Normalisation,
) -> LabelFreeScores:
    """Scores of a backbone on images, in evaluation mode; each image passes it twice.

    Equation 5 pairs an image with an augmentation of it; SimCLR's augmentation is drawn whatever
    the method, so that methods can be compared. (The published code pairs two augmentations.)

    Args:
        backbone: maps normalised images (B, C, H, W) to features (B, dim).
        images: (N, C, H, W) uint8, N >= 1.
        augmentation: limits that the images set; larger images are shrunk to its `view_size`.
        generator: draws the augmentations; on the backbone's device.
        by: how they are normalised, `data.normalise`.
    """
    images = resize(images, min(images.shape[-1], augmentation.view_size or images.shape[-1]))
    device, recipe = device_of(backbone), SIMCLR.limited(augmentation)
    plain: list[Tensor] = []
    augmented: list[Tensor] = []
    with evaluation_mode(backbone), torch.inference_mode():
        for batch in (part.to(device) for part in image_batches(images, batch_size, device)):
            view = augment(batch, [recipe], generator).images[0]
            for pixels, made in ((batch / 255, plain), (view, augmented)):
                made.append(backbone(normalise(pixels, by)).float())
        features = torch.cat(plain)
        return LabelFreeScores(
            alignment=alignment(features, torch.cat(augmented)),
            uniformity=uniformity(features),
            effective_rank=effective_rank(features),
        )
