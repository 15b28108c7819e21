"""A classifier from a few labelled embeddings, and how accurate it is, by those alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from orchestra_flwr.evaluation.linear_probe import LinearProbe, best_penalty, fit_linear_probe

FOLDS = 5
STRENGTHS = tuple(10.0**power for power in range(-4, 3))  # scikit-learn's C: large is weak
CONFIDENCE = 0.95


@dataclass(frozen=True)
class FewLabelClassifier:
    """A linear probe of embeddings.

    Attributes:
        classes: names, in alphabetical order.
        weight: (classes, dim) float32, for embeddings as they are.
        bias: (classes,) float32.
        strength: scikit-learn's C that cross-validation chose: one over the weight of the penalty.
    """

    classes: tuple[str, ...]
    weight: Tensor
    bias: Tensor
    strength: float

    def probabilities(self, vectors: Tensor) -> Tensor:
        """(n, classes) of embeddings (n, dim)."""
        return (vectors.double() @ self.weight.T.double() + self.bias.double()).softmax(1)


@dataclass(frozen=True)
class EstimatedAccuracy:
    """What cross-validation says of images like the labelled ones.

    Attributes:
        accuracy: share of the labelled images that a classifier of the others gets right.
        low: lower end of the 95 % confidence interval.
        high: its upper end.
        images: how many labelled images there are.
        by_class: the same share of each class's images.
    """

    accuracy: float
    low: float
    high: float
    images: int
    by_class: dict[str, float]


def fit_few_labels(vectors: Tensor, labels: list[str], seed: int) -> FewLabelClassifier:
    """Logistic regression on standardised embeddings; its penalty by 5-fold cross-validation.

    The penalty with the least mean cross-entropy of the images left out is taken. All folds are
    of the labelled images alone.

    Args:
        vectors: (n, dim) embeddings, finite.
        labels: n names of classes, at least five of each.
        seed: of the folds.
    """
    names, codes = np.unique(labels, return_inverse=True)
    probe, strength = _fitted(vectors, torch.from_numpy(codes), seed)
    return FewLabelClassifier(tuple(map(str, names)), probe.weight, probe.bias, strength)


def estimate_accuracy(vectors: Tensor, labels: list[str], seed: int) -> EstimatedAccuracy:
    """Nested cross-validation: the penalty is chosen anew without each fold that is tested.

    So no image has a part in the classifier that it tests. The interval is Wilson's, which treats
    the tests as independent; those of one cross-validation are nearly so. The accuracy is that of a
    classifier with four fifths of the labels, so the final one is a little better.

    Args:
        vectors: as in :func:`fit_few_labels`; so are `labels` and `seed`.
    """
    from scipy.stats import binomtest
    from sklearn.model_selection import StratifiedKFold

    names, codes = np.unique(labels, return_inverse=True)
    classes = torch.from_numpy(codes)
    right = np.zeros(len(classes), dtype=bool)
    splits = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    for train, test in splits.split(np.zeros(len(codes)), codes):
        probe, _ = _fitted(vectors[train], classes[train], seed)
        right[test] = (probe.predict(vectors[test]) == classes[test]).numpy()
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(CONFIDENCE, "wilson")
    return EstimatedAccuracy(
        accuracy=float(right.mean()),
        low=float(interval.low),
        high=float(interval.high),
        images=len(right),
        by_class={str(n): float(right[codes == code].mean()) for code, n in enumerate(names)},
    )


def _fitted(vectors: Tensor, classes: Tensor, seed: int) -> tuple[LinearProbe, float]:
    """The probe with the best penalty, and that penalty as scikit-learn's C."""
    penalties = [1 / (strength * len(classes)) for strength in STRENGTHS]
    folds = min(FOLDS, int(classes.bincount().min()))
    penalty = best_penalty(vectors, classes, penalties, folds, seed)
    return fit_linear_probe(vectors, classes, penalty), STRENGTHS[penalties.index(penalty)]
