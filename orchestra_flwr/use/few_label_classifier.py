"""A classifier from a few labelled embeddings, and how accurate it is, by those alone."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FOLDS = 5
STRENGTHS = tuple(10.0**power for power in range(-4, 3))  # scikit-learn's C: large is weak
CONFIDENCE = 0.95
MAX_ITERATIONS = 1000


@dataclass(frozen=True)
class FewLabelClassifier:
    """Multinomial logistic regression on embeddings.

    Attributes:
        classes: names, in alphabetical order.
        weight: (classes, dim) float32, for embeddings as they are.
        bias: (classes,) float32.
        strength: the C that cross-validation chose: one over the weight of the L2 penalty.
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
    pipeline = _fitted(vectors.double().numpy(), np.array(labels), seed)
    scaler, regression = pipeline[0], pipeline[1]
    weight = regression.coef_ / scaler.scale_
    bias = regression.intercept_ - weight @ scaler.mean_
    classes = tuple(str(name) for name in regression.classes_)
    if len(classes) == 2:  # one row, of the second class against the first
        weight, bias = np.vstack([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    return FewLabelClassifier(
        classes,
        torch.from_numpy(weight).float().contiguous(),  # scikit-learn's may be transposed
        torch.from_numpy(bias).float(),
        float(regression.C),
    )


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

    points, names = vectors.double().numpy(), np.array(labels)
    right = np.zeros(len(names), dtype=bool)
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(points, names):
        fitted = _fitted(points[train], names[train], seed)
        right[test] = fitted.predict(points[test]) == names[test]
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(CONFIDENCE, "wilson")
    return EstimatedAccuracy(
        accuracy=float(right.mean()),
        low=float(interval.low),
        high=float(interval.high),
        images=len(right),
        by_class={str(name): float(right[names == name].mean()) for name in np.unique(names)},
    )


def _fitted(points: NDArray[np.float64], names: NDArray[Any], seed: int) -> Any:
    """A fitted pipeline: the scaler, then the regression."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fewest = int(np.unique(names, return_counts=True)[1].min())
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=MAX_ITERATIONS)),
        {"logisticregression__C": STRENGTHS},
        cv=StratifiedKFold(min(FOLDS, fewest), shuffle=True, random_state=seed),
        scoring="neg_log_loss",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of weak penalties, which lose
        return search.fit(points, names).best_estimator_
