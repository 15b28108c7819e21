"""Spectral: the spectral contrastive loss on the projector's outputs.

HaoChen et al., "Provable Guarantees for Self-Supervised Deep Learning with Spectral Contrastive
Loss", NeurIPS 2021 (arXiv 2106.04156). `method=specloss` has it on the cosines of another layer, as
in the Orchestra paper.
"""

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.methods import Batch, Step
from orchestra_flwr.methods.families import SomeLabels
from orchestra_flwr.methods.labels import LabelSettings
from orchestra_flwr.methods.semi_supervised import WHOLE_BATCH, Group, losses_with_labels

Norm = Literal["sphere", "ball", "none"]


def spectral_contrastive_loss(
    first: Tensor, second: Tensor, norm: Norm = "none", group: Group = WHOLE_BATCH
) -> Tensor:
    """-2 E<x, x+> + E<x, y>^2 over pairs of views of one and of different images.

    Args:
        first: (B, D) outputs for one view of every image.
        second: (B, D) outputs for another view of the same images.
        norm: "sphere": outputs are scaled to unit length first; "ball": only those longer than 1
            are, as in the authors' code (mu = 1); "none": they stay as they are.
        group: the images of the first mean, and the pairs of the second one.

    Returns:
        Scalar: the means over the B equal and the B (B - 1) different pairs. A single image has no
        different pair, and nothing that pushes it away.
    """
    if norm == "sphere":
        first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
    elif norm == "ball":
        first, second = (x / x.norm(dim=1, keepdim=True).clamp(min=1) for x in (first, second))
    count = len(first)
    products = first @ second.T
    same = torch.eye(count, dtype=torch.bool, device=products.device)
    matching, squares = products.diagonal(), products.square().masked_fill(same, 0)
    if group.weights is not None:
        matching = matching * group.weights
    if group.pair_weights is not None:
        squares = squares * group.pair_weights
    return -2 * matching.mean() + squares.sum() / max(count * (count - 1), 1)


class Spectral(SomeLabels):
    """Backbone and a two-layer projector; with labels also a linear classifier."""

    class Settings(LabelSettings):
        norm: Norm = "ball"

    settings: Settings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.add_classifier(config)

    def loss(self, batch: Batch) -> Step:
        """The spectral loss of one step; with labels as :mod:`.semi_supervised` says."""
        features, projections = self.embed(batch.views)
        first, second = projections
        spectral = partial(spectral_contrastive_loss, first, second, self.settings.norm)
        losses = losses_with_labels("spectral", spectral, self.classifier, features, batch.labels)
        return Step(losses, {"backbone": features, "projector": projections})
