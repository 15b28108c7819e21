"""The scores of an encoder, as they stand in metrics and summary."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from orchestra_flwr.config import EvaluationConfig
from orchestra_flwr.evaluation.features import extract_features, feature_std
from orchestra_flwr.evaluation.knn import knn_accuracy
from orchestra_flwr.evaluation.linear_probe import linear_accuracy


@dataclass(frozen=True)
class Scores:
    """How good features are.

    Attributes:
        knn: accuracy of the weighted kNN, a fraction.
        linear: accuracy of the linear probe, a fraction.
        feature_std: spread of the normalised test features, 0 (collapsed) to about 1.
    """

    knn: float
    linear: float
    feature_std: float


def evaluate(
    encoder: nn.Module,
    train_images: Tensor,
    train_labels: Tensor,
    test_images: Tensor,
    test_labels: Tensor,
    *,
    config: EvaluationConfig,
) -> Scores:
    """Judges an encoder by all test images, none left out.

    Args:
        encoder: maps uint8 images (B, C, H, W) to features (B, dim).
        train_images: (N, C, H, W) uint8; the kNN's bank and the probe's training set.
        train_labels: (N,) classes from 0.
        test_images: (M, C, H, W) uint8.
        test_labels: (M,) classes from 0.
        config: batch size, and the kNN's k and temperature.

    Raises:
        ValueError: shapes do not fit, or a feature is not finite.
    """
    return evaluate_features(
        extract_features(encoder, train_images, config.batch_size),
        train_labels,
        extract_features(encoder, test_images, config.batch_size),
        test_labels,
        config=config,
    )


def evaluate_features(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    config: EvaluationConfig,
) -> Scores:
    """Judges features (N, dim) and (M, dim); else as :func:`evaluate`."""
    return Scores(
        knn=knn_accuracy(
            train,
            train_labels,
            test,
            test_labels,
            k=config.knn_k,
            temperature=config.knn_temperature,
        ),
        linear=linear_accuracy(train, train_labels, test, test_labels),
        feature_std=feature_std(test),
    )
