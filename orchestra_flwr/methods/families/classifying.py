"""Methods with a classifier: beside another loss, on its own, or as a source of pseudo-labels."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from orchestra_flwr.config import Config, Normalisation
from orchestra_flwr.data import SIMCLR, UNLABELLED
from orchestra_flwr.methods import LearnsLabels, Received, StartsRounds, sees_labels
from orchestra_flwr.methods.families.one_backbone import OneBackbone, Projecting
from orchestra_flwr.methods.labels import required_classes
from orchestra_flwr.models import BatchNormPolicy, check_statistics, extract_features


class SomeLabels(LearnsLabels, Projecting):
    """With `labels.fraction` a linear classifier is trained beside the method's own loss.

    A subclass builds the rest first, so that it begins with the same weights as without labels, and
    then calls :meth:`add_classifier`. Its loss is that of
    :func:`~orchestra_flwr.methods.semi_supervised.losses_with_labels`.
    """

    classifier: nn.Linear | None

    def add_classifier(self, config: Config) -> None:
        """Builds a linear classifier of the run's classes; None where the method sees no labels.

        Raises:
            ConfigError: the number of classes is not known.
        """
        self.classifier = None
        if sees_labels(config):
            self.classifier = nn.Linear(self.backbone.dim, required_classes(config).count)

    def classification_head(self) -> nn.Module | None:
        """The linear classifier, where there are labels."""
        return self.classifier


class Classifying(LearnsLabels, OneBackbone):
    """A backbone, and a linear classifier of its features; there is no projector.

    Raises:
        ConfigError: nothing says how many classes there are.
    """

    needs_labels = True

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.classifier = nn.Linear(self.backbone.dim, required_classes(config).count)

    def classification_head(self) -> nn.Module:
        """The linear classifier."""
        return self.classifier


class PseudoLabelling(StartsRounds, Classifying):
    """A classifier whose received weights label the client's images, for the whole round."""

    views: ClassVar = (SIMCLR, SIMCLR)

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self._batch_norm = BatchNormPolicy.of(config)
        self._normalisation = config.data.normalise
        self._batch_size = config.training.batch_size
        self._pseudo: Tensor | None = None

    @abstractmethod
    def pseudo_labels(self, probabilities: Tensor) -> Tensor:
        """(n,) classes from (n, K) probabilities, UNLABELLED for images that are not used."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses pseudo-labels from a received model that lacks BatchNorm statistics."""
        super().check(config)
        fraction = config.labels.fraction
        if fraction is not None:
            check_statistics(config, f"method={config.method.name} labels.fraction={fraction:g}")

    def start_round(self, received: Received) -> None:
        """Labels a client's images, if any has no label, with the model that it received."""
        labels, self._pseudo = received.labels, None
        if labels is not None and bool((labels != UNLABELLED).all()):
            return
        images, size, by = received.images, self._batch_size, self._normalisation
        backbone = self.backbone
        if self._batch_norm.is_local:
            backbone = self._batch_norm.on_client(backbone, images, size, by)
        probabilities = class_probabilities(backbone, self.classifier, images, by, size)
        self._pseudo = self.pseudo_labels(probabilities)


@torch.no_grad()
def class_probabilities(
    backbone: nn.Module, classifier: nn.Module, images: Tensor, by: Normalisation, batch_size: int
) -> Tensor:
    """(n, K) float32, of images as they are, in evaluation mode; restores the modules' modes.

    Args:
        backbone: of the classifier's features.
        classifier: makes (B, K) logits of (B, dim) features.
        images: (n, C, H, W) uint8 on their device, n >= 1.
    """
    features = extract_features(backbone, images, batch_size, by=by)
    probabilities: Tensor = classifier(features).float().softmax(1)
    return probabilities


def confident_classes(probabilities: Tensor, threshold: float) -> Tensor:
    """(n,) the most probable class of each image, UNLABELLED unless it exceeds the threshold.

    Args:
        probabilities: (n, K).
        threshold: that the largest probability must exceed.
    """
    largest, classes = probabilities.max(1)
    return classes.where(largest > threshold, torch.full_like(classes, UNLABELLED))


def with_pseudo_labels(labels: Tensor, pseudo: Tensor | None, images: Tensor) -> Tensor:
    """(B,) the images' labels, with pseudo-labels for those that have none.

    Args:
        labels: (B,), UNLABELLED where there is none.
        pseudo: (n,) of all of the client's images, UNLABELLED where one has none; None: none has.
        images: (B,) which of the client's images these are.
    """
    return labels if pseudo is None else pseudo[images].where(labels == UNLABELLED, labels)
