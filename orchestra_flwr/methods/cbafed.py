"""CBAFed: pseudo-labels with a threshold for each class, lower for classes that were seldom used.

Li, Li and Wang, "Class Balanced Adaptive Pseudo Labeling for Federated Semi-Supervised Learning",
CVPR 2023, without its residual weight connection, as in "A Mutual Information Perspective on
Federated Contrastive Learning" (arXiv 2405.02081). Where that paper is silent, the authors' code is
followed: gradients are clipped to norm 5, and with `federation.weighting=samples` a client's weight
is the number of images that it used. The paper's preset sets `federation.weighting=uniform`.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.data import UNLABELLED
from orchestra_flwr.methods import (
    Batch,
    ClipsGradients,
    Contributes,
    Received,
    Role,
    Step,
    classes_of,
)
from orchestra_flwr.methods.families import PseudoLabelling
from orchestra_flwr.methods.families.classifying import with_pseudo_labels
from orchestra_flwr.methods.labels import LabelSettings
from orchestra_flwr.methods.semi_supervised import label_loss
from orchestra_flwr.privacy.release import Contribution, Release
from orchestra_flwr.seeding import ClientSeed

COUNTS = "class_counts"
REFERENCE_CLASSES = 10  # the constants were chosen for this many classes; shares are scaled


def class_thresholds(shares: Tensor, base: float, upper: float) -> Tensor:
    """(K,) probabilities that a pseudo-label of each class must exceed.

    q + base - std(q), at most `upper`, for (K,) shares q of the classes among the images that were
    used, times K / 10. The standard deviation is taken over the K classes.
    """
    return (shares + base - shares.std(correction=0)).clamp(max=upper)


def balanced_classes(
    probabilities: Tensor, shares: Tensor, thresholds: Tensor, rare: float
) -> Tensor:
    """(n,) pseudo-labels, UNLABELLED for images that are not used.

    An image gets its most probable class if the probability exceeds that class's threshold, and
    otherwise its second most probable class if that is rare.

    Args:
        probabilities: (n, K).
        shares: (K,), as in :func:`class_thresholds`.
        thresholds: (K,).
        rare: a class with a smaller share is rare.
    """
    (largest, _), (first, second) = (columns.unbind(1) for columns in probabilities.topk(2))
    others = second.where(shares[second] < rare, torch.full_like(second, UNLABELLED))
    return first.where(largest > thresholds[first], others)


class CBAFed(Contributes, ClipsGradients, PseudoLabelling):
    """Backbone, a linear classifier, and the classes' shares of the images used so far.

    Each client counts the images that it uses by class, and the server computes the shares from all
    counts of a round. Before training, clients count their labels.
    """

    class Settings(LabelSettings):
        base: float = Field(0.84, ge=0, le=1)  # of the thresholds
        upper: float = Field(0.95, ge=0, le=1)  # thresholds are at most this
        rare: float = Field(0.03, ge=0, le=1)  # a class with a smaller share may be a second choice
        clip_gradients: float | None = Field(5.0, gt=0)  # maximal L2 norm; None: not clipped

    roles: ClassVar = {"shares": Role.SERVER}

    settings: Settings
    shares: Tensor

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.gradient_norm = self.settings.clip_gradients
        self._count = self.classifier.out_features
        self._used = torch.zeros(self._count)
        self.register_buffer("shares", torch.zeros(self._count))

    @classmethod
    def release(cls, config: Config) -> Release | None:
        """A row of counts; None as long as the classes are not known."""
        classes = classes_of(config)
        if classes is None:
            return None
        return Release(
            {COUNTS: (1, classes.count)},
            label="class counts",
            max_norm=1.0,
            norm_per_image=True,
            first_round=0,
        )

    @classmethod
    def weight(cls, images: int, contributions: Mapping[str, Tensor]) -> float:
        """The number of images that the client used, at least 1 so that there always is a mean.

        It is at most the number that it has: no client can take over the mean by its counts.
        """
        used = float(contributions[COUNTS].clamp(min=0).sum())
        return min(float(images), max(1.0, used))

    def start_round(self, received: Received) -> None:
        """Labels the client's images, except in round 0, before any training; counts all labels."""
        labels = received.labels
        if labels is None:
            labels = torch.full((len(received.images),), UNLABELLED, device=self.shares.device)
        self._pseudo = None
        if received.round > 0:
            super().start_round(received)
        rows = torch.arange(len(labels), device=labels.device)
        used = with_pseudo_labels(labels, self._pseudo, rows)
        self._used = torch.bincount(used[used != UNLABELLED], minlength=self._count).float()

    def pseudo_labels(self, probabilities: Tensor) -> Tensor:
        settings = self.settings
        thresholds = class_thresholds(self.shares, settings.base, settings.upper)
        return balanced_classes(probabilities, self.shares, thresholds, settings.rare)

    def loss(self, batch: Batch) -> Step:
        """Cross-entropy of labels and pseudo-labels alike, summed over the views."""
        assert batch.labels is not None
        views = tuple(self.backbone(view) for view in batch.views)
        targets = with_pseudo_labels(batch.labels, self._pseudo, batch.images)
        used = targets != UNLABELLED
        losses = {"classification": label_loss(self.classifier, views, targets, used)}
        return Step(losses, {"backbone": views})

    def end_round(self, images: Tensor, seed: ClientSeed) -> Contribution:
        """How many images of each class were used, (1, K)."""
        return Contribution({COUNTS: self._used[None]})

    def update_server_state(
        self, contributions: Mapping[str, Tensor], generator: torch.Generator
    ) -> Mapping[str, float]:
        """The classes' shares of all images that were used, times K / 10."""
        counts = contributions[COUNTS].clamp(min=0).sum(0)
        self.shares.copy_(counts / counts.sum().clamp(min=1) * (self._count / REFERENCE_CLASSES))
        return {}
