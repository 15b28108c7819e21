"""Pseudo-labels: the received model labels the images of a client that have no label."""

import torch
from torch import Tensor, nn

from orchestra_flwr.config import Normalisation
from orchestra_flwr.data import UNLABELLED
from orchestra_flwr.models import clean_features


@torch.no_grad()
def class_probabilities(
    backbone: nn.Module, classifier: nn.Module, images: Tensor, by: Normalisation, batch_size: int
) -> Tensor:
    """(n, K) float32, of images as they are, in evaluation mode; modes are left as they were.

    Args:
        backbone: of the classifier's features.
        classifier: makes (B, K) logits of (B, dim) features.
        images: (n, C, H, W) uint8 on their device, n >= 1.
        by: how images are normalised.
        batch_size: images at once.
    """
    training = backbone.training
    features = clean_features(backbone, images, by, batch_size)
    backbone.train(training)
    probabilities: Tensor = classifier(features).float().softmax(1)
    return probabilities


def confident_classes(probabilities: Tensor, threshold: float) -> Tensor:
    """(n,) the most probable class of each image, UNLABELLED up to the threshold.

    Args:
        probabilities: (n, K).
        threshold: that the largest probability must exceed.
    """
    largest, classes = probabilities.max(1)
    return classes.where(largest > threshold, torch.full_like(classes, UNLABELLED))


def with_pseudo_labels(labels: Tensor, pseudo: Tensor | None, images: Tensor) -> Tensor:
    """(B,) the images' labels, and pseudo-labels of those that have none.

    Args:
        labels: (B,), UNLABELLED where there is none.
        pseudo: (n,) of all of the client's images, UNLABELLED where there is none; None: of none.
        images: (B,) which of them these are.
    """
    return labels if pseudo is None else pseudo[images].where(labels == UNLABELLED, labels)
