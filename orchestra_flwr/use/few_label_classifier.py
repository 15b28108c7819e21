"""A classifier from a few labelled embeddings, and its accuracy, estimated from them alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestra_flwr.console.image_count import image_count
from orchestra_flwr.evaluation.linear_probe import LinearProbe, fit_linear_probe

FOLDS = 5
CONFIDENCE = 0.95


@dataclass(frozen=True)
class FewLabelClassifier:
    """A linear probe of embeddings.

    Attributes:
        classes: names, in alphabetical order.
        probe: its classes are positions in `classes`.
        strength: scikit-learn's C of the penalty that cross-validation chose: large is weak.
    """

    classes: tuple[str, ...]
    probe: LinearProbe
    strength: float

    def probabilities(self, vectors: Tensor) -> Tensor:
        """(n, classes) of embeddings (n, dim)."""
        probe = self.probe
        return (vectors.double() @ probe.weight.T.double() + probe.bias.double()).softmax(1)


@dataclass(frozen=True)
class EstimatedAccuracy:
    """The accuracy that cross-validation predicts for images like the labelled ones.

    Attributes:
        accuracy: share of the labelled images that a classifier fitted to others gets right.
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
    """Logistic regression on standardised embeddings; its penalty by cross-validation on them.

    Args:
        vectors: (n, dim) embeddings, finite.
        labels: n names of classes, at least five of each.
    """
    names, codes = np.unique(labels, return_inverse=True)
    probe = fit_linear_probe(vectors, torch.from_numpy(codes), seed=seed)
    return FewLabelClassifier(tuple(map(str, names)), probe, 1 / (probe.penalty * len(codes)))


def estimate_accuracy(vectors: Tensor, labels: list[str], seed: int) -> EstimatedAccuracy:
    """Nested cross-validation: for each test fold, the penalty is chosen anew without it.

    So no image influences the classifier that it tests. The interval is Wilson's, which treats the
    tests as independent; those of one cross-validation are nearly so. The accuracy is that of a
    classifier with four fifths of the labels, so the final one is a little better.

    Args:
        vectors: as in :func:`fit_few_labels`; so are `labels` and `seed`.
    """
    from scipy.stats import binomtest

    names, codes = np.unique(labels, return_inverse=True)
    right = rightly_classified(vectors, codes, seed)
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(CONFIDENCE, "wilson")
    return EstimatedAccuracy(
        accuracy=float(right.mean()),
        low=float(interval.low),
        high=float(interval.high),
        images=len(right),
        by_class={str(n): float(right[codes == code].mean()) for code, n in enumerate(names)},
    )


def rightly_classified(
    vectors: Tensor, codes: NDArray[np.integer[Any]], seed: int
) -> NDArray[np.bool_]:
    """(n,): whether a probe fitted to the other four folds predicts each image's class.

    Progress is shown on stderr: many classes take minutes.

    Args:
        vectors: (n, dim) embeddings, finite.
        codes: (n,) classes from 0, at least five images of each.
        seed: of the folds, which do not depend on the embeddings.
    """
    from sklearn.model_selection import StratifiedKFold

    classes = torch.from_numpy(codes)
    right = np.zeros(len(classes), dtype=bool)
    splits = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    tried = 0
    with image_count(len(codes), "classified") as on_progress:
        for train, test in splits.split(np.zeros(len(codes)), codes):
            probe = fit_linear_probe(vectors[train], classes[train], seed=seed)
            right[test] = (probe.predict(vectors[test]) == classes[test]).numpy()
            tried += len(test)
            on_progress(tried, len(codes))
    return right
