"""Whether one encoder is better than another on the same images."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestra_flwr.evaluation import voters
from orchestra_flwr.use.few_label_classifier import rightly_classified
from orchestra_flwr.use.similar import Neighbours, nearest_neighbours

NEIGHBOURS = 10  # that vote on an image, and that the page can show
TEMPERATURE = 0.1  # of the votes, as in a run's kNN
DEVIATIONS = 1.96  # of a 95 % interval


@dataclass(frozen=True)
class Accuracy:
    """An accuracy before and after, and the difference.

    Attributes:
        before: share of the images that are classified correctly.
        after: the same with the other encoder.
        low: of the difference, the lower end of its 95 % confidence interval.
        high: its upper end.
    """

    before: float
    after: float
    low: float
    high: float

    @classmethod
    def of(cls, before: NDArray[np.bool_], after: NDArray[np.bool_]) -> Self:
        """From (n,) whether each image is classified correctly.

        The differences are paired: an image that both encoders classify correctly, or both wrongly,
        does not say which is better. Where few images do, the mean's plain interval is too narrow,
        and of no width where none does. So one more image counts for each encoder.

        Source:
            Bonett and Price, Adjusted Wald confidence interval for a difference of binomial
            proportions based on paired data, 2012.
        """
        count = len(before) + 2
        gained = (int((after & ~before).sum()) + 1) / count
        lost = (int((before & ~after).sum()) + 1) / count
        middle = gained - lost
        width = DEVIATIONS * math.sqrt((gained + lost - middle**2) / count)
        low, high = max(-1.0, middle - width), min(1.0, middle + width)
        return cls(float(before.mean()), float(after.mean()), low, high)


@dataclass(frozen=True)
class Comparison:
    """Two encoders on the same n images.

    Attributes:
        label_free: by the name of a score, its value before and after.
        accuracies: `knn` and `linear`; empty without labels.
        neighbours: the nearest images of each image, before and after.
    """

    label_free: Mapping[str, tuple[float, float]]
    accuracies: Mapping[str, Accuracy]
    neighbours: tuple[Neighbours, Neighbours]

    @property
    def neighbours_in_common(self) -> float:
        """The mean share of an image's nearest images before that are also nearest after."""
        before, after = (neighbours.indices for neighbours in self.neighbours)
        same = (before[:, :, None] == after[:, None, :]).any(2)
        return float(same.double().mean())

    @property
    def verdict(self) -> str:
        """What can be concluded from the figures, in a line."""
        probe = self.accuracies.get("linear")
        count = len(self.neighbours[0].indices)
        if probe is None:
            return (
                "no verdict: without labels nothing says for certain which encoder is better; look "
                "at neighbours side by side, or give some labels"
            )
        if probe.low > 0:
            return f"better: {_points(probe)} of the linear probe"
        if probe.high < 0:
            return f"WORSE: {_points(probe)} of the linear probe"
        return f"no difference that {count:,} images can show: {_points(probe)} of the linear probe"

    def as_json(self) -> dict[str, Any]:
        """All figures."""
        label_free = {k: {"before": a, "after": b} for k, (a, b) in self.label_free.items()}
        return {
            "verdict": self.verdict,
            "images": len(self.neighbours[0].indices),
            "neighbours_in_common": self.neighbours_in_common,
            "label_free": label_free,
            "accuracies": {name: vars(accuracy) for name, accuracy in self.accuracies.items()},
        }


def compare(
    vectors: tuple[Tensor, Tensor],
    label_free: tuple[Mapping[str, float], Mapping[str, float]],
    labels: Sequence[str] | None,
    seed: int,
) -> Comparison:
    """Compares two encoders by their features of the same images.

    Accuracies are by cross-validation: kNN votes without the image itself, and the probe is fitted
    to four fifths of the images and tested on the other fifth.

    Args:
        vectors: (n, dim) features before and after, finite; the two may differ in width.
        label_free: scores without labels, before and after.
        labels: n names of classes, at least five images of each; None: there are none.
    """
    before, after = (nearest_neighbours(features, NEIGHBOURS) for features in vectors)
    accuracies = {}
    if labels is not None:
        codes = np.unique(labels, return_inverse=True)[1]
        accuracies = {
            "knn": Accuracy.of(_named_by(before, codes), _named_by(after, codes)),
            "linear": Accuracy.of(
                *(rightly_classified(features, codes, seed) for features in vectors)
            ),
        }
    scores = {name: (value, label_free[1][name]) for name, value in label_free[0].items()}
    return Comparison(scores, accuracies, (before, after))


def _named_by(neighbours: Neighbours, codes: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """(n,): whether an image's neighbours, weighted by exp(cosine / .1), vote for its class.

    At most a tenth of all images vote: of five images of a class only four could vote for it.
    """
    classes = torch.from_numpy(codes)
    k = voters(NEIGHBOURS, len(classes))
    votes = torch.zeros(len(classes), int(classes.max()) + 1)
    weights = (neighbours.cosines[:, :k] / TEMPERATURE).exp()
    votes.scatter_add_(1, classes[neighbours.indices[:, :k]], weights)
    return (votes.argmax(1) == classes).numpy()


def _points(accuracy: Accuracy) -> str:
    difference = 100 * (accuracy.after - accuracy.before)
    interval = f"{100 * accuracy.low:+.1f} to {100 * accuracy.high:+.1f}"
    return f"{difference:+.1f} points (95 % confidence interval {interval})"
