"""SimCLR: two views of an image are closer than views of different images.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020.
"""

import math
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.methods import Batch, BoundsInformation, KnowsChance, Step
from orchestra_flwr.methods.families import SomeLabels
from orchestra_flwr.methods.labels import LabelSettings
from orchestra_flwr.methods.semi_supervised import WHOLE_BATCH, Group, losses_with_labels


def nt_xent_loss(
    first: Tensor, second: Tensor, temperature: float, group: Group = WHOLE_BATCH
) -> Tensor:
    """Normalised temperature-scaled cross-entropy (SimCLR, equation 1), averaged over 2 B views.

    Args:
        first: (B, D) features of one view of every image; only their directions matter.
        second: (B, D) features of another view of the same images.
        temperature: tau, by which cosine similarities are divided.
        group: the images that are compared and averaged over.

    Returns:
        Scalar.
    """
    count = len(first)
    features = F.normalize(torch.cat([first, second]), dim=1)
    itself = torch.eye(2 * count, dtype=torch.bool, device=features.device)
    similarity = (features @ features.T / temperature).masked_fill(itself, -torch.inf)
    partner = torch.arange(2 * count, device=features.device).roll(count)
    return _cross_entropy(similarity, partner, group)


def info_nce_loss(
    first: Tensor, second: Tensor, temperature: float, group: Group = WHOLE_BATCH
) -> Tensor:
    """InfoNCE: which of the other views is of the same image? Averaged over both directions.

    Equation 14 of the mutual-information paper (ICLR 2024, arXiv 2405.02081) and its mirror image
    as cross-entropies: log B minus the loss bounds the information that two views share. Candidates
    are the B views of the other side; NT-Xent compares with views of the same side as well.

    Args:
        first: (B, D) features of one view of every image; only their directions matter.
        second: (B, D) features of another view of the same images.
        temperature: tau, by which cosine similarities are divided.
        group: as for :func:`nt_xent_loss`.

    Returns:
        Scalar; log B for features that are all alike.
    """
    similarity = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T / temperature
    same = torch.arange(len(first), device=similarity.device)
    directions = (similarity, similarity.T)
    forth, back = (_cross_entropy(cosines, same, group) for cosines in directions)
    return (forth + back) / 2


def _cross_entropy(logits: Tensor, targets: Tensor, group: Group) -> Tensor:
    """Weighted mean of the cross-entropies of (k B, k B) logits, of k views of B images."""
    if group.candidates is not None:
        views = len(logits) // len(group.candidates)
        logits = logits.masked_fill(~group.candidates.repeat(views, views), -torch.inf)
    if group.weights is None:
        return F.cross_entropy(logits, targets)
    entropies = F.cross_entropy(logits, targets, reduction="none")
    return (entropies * group.weights.repeat(len(logits) // len(group.weights))).mean()


class SimCLR(BoundsInformation, KnowsChance, SomeLabels):
    """Backbone and a two-layer projector; with labels also a linear classifier."""

    class Settings(LabelSettings):
        temperature: float = Field(0.1, gt=0)
        loss: Literal["nt_xent", "infonce"] = "nt_xent"

    settings: Settings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.add_classifier(config)

    def loss(self, batch: Batch) -> Step:
        """The contrastive loss of one step; with labels as :mod:`.semi_supervised` says."""
        features, projections = self.embed(batch.views)
        first, second = projections
        loss = info_nce_loss if self.settings.loss == "infonce" else nt_xent_loss
        contrast = partial(loss, first, second, self.settings.temperature)
        losses = losses_with_labels(
            "contrastive", contrast, self.classifier, features, batch.labels
        )
        return Step(losses, {"backbone": features, "projector": projections})

    def chance_losses(self, batch_size: int) -> dict[str, float]:
        """The logarithm of the number of candidates, which are equally likely."""
        infonce = self.settings.loss == "infonce"
        return {"contrastive": math.log(batch_size if infonce else 2 * batch_size - 1)}

    def information(self, step: Step) -> Tensor:
        """log B - InfoNCE, a valid bound whichever loss is minimised."""
        first, second = (projection.detach() for projection in step.features["projector"])
        return math.log(len(first)) - info_nce_loss(first, second, self.settings.temperature)
