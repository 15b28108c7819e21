"""SemiFed: cross-entropy, also of labels that the server's model gives to unlabelled images.

Lin et al., "SemiFed: Semi-supervised Federated Learning with Consistency and Pseudo-Labeling",
2021 (arXiv 2108.09412), as "A Mutual Information Perspective on Federated Contrastive Learning"
(arXiv 2405.02081) has it: the received model labels images without their augmentations, and both
augmented views have to tell that label. No models of other clients are asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.data import SIMCLR, UNLABELLED, Recipe
from orchestra_flwr.methods import Batch, Received, StartsRounds, Step
from orchestra_flwr.methods.families import Classifying
from orchestra_flwr.methods.labels import LabelSettings
from orchestra_flwr.methods.pseudo_labels import (
    check_pseudo_labels,
    class_probabilities,
    confident_classes,
    with_pseudo_labels,
)
from orchestra_flwr.methods.semi_supervised import label_loss


class SemiFed(StartsRounds, Classifying):
    """Backbone and a linear classifier."""

    class Settings(LabelSettings):
        """Options under `method.` for method=semifed."""

        threshold: float = Field(0.95, ge=0, lt=1)  # of the probability of a pseudo-label

    settings: Settings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self._normalisation = config.data.normalise
        self._batch_size = config.training.batch_size
        self._pseudo: Tensor | None = None

    @classmethod
    def check(cls, config: Config) -> None:
        """Pseudo-labels need statistics of images."""
        super().check(config)
        check_pseudo_labels(config)

    def recipes(self) -> Sequence[Recipe]:
        """The same augmentation for both views."""
        return (SIMCLR, SIMCLR)

    def start_round(self, received: Received) -> None:
        """Labels the client's images for the whole round, with the model that it starts from."""
        probabilities = class_probabilities(
            self.backbone, self.classifier, received.images, self._normalisation, self._batch_size
        )
        self._pseudo = confident_classes(probabilities, self.settings.threshold)

    def loss(self, batch: Batch) -> Step:
        """Cross-entropies of labels and of pseudo-labels, each a sum over the views."""
        assert batch.labels is not None
        views = tuple(self.backbone(view) for view in batch.views)
        labelled = batch.labels != UNLABELLED
        targets = with_pseudo_labels(batch.labels, self._pseudo, batch.images)
        guessed = (targets != UNLABELLED) & ~labelled
        losses = {
            "classification": label_loss(self.classifier, views, targets, labelled),
            "pseudo_labels": label_loss(self.classifier, views, targets, guessed),
        }
        return Step(losses, {"backbone": views})
