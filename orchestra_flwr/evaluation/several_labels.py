"""The evaluation of frozen features on images that may show several classes."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestra_flwr.evaluation.linear_probe import fit_linear_probe

DRAWS = 50  # of the test images, for the standard error


class MeanAveragePrecision(NamedTuple):
    """A mean average precision, 0 to 1, and what another draw of test images would change."""

    mean: float
    standard_error: float


def mean_average_precision(
    train: Tensor, train_tags: Tensor, test: Tensor, test_tags: Tensor, penalty: float | None = None
) -> MeanAveragePrecision:
    """Mean over the classes of the average precision of one-vs-rest linear probes (mAP).

    A class counts if it can be learned and tested: some training images show it and some do not,
    and a test image shows it. About the mean share of images that show a class if features carry no
    information. The standard error is that of the bootstrap over test images (Efron, 1979).

    Args:
        train: (N, dim) features, finite.
        train_tags: (N, K) bool, which classes an image shows.
        test: (M, dim) features on the same device.
        test_tags: (M, K) bool.
        penalty: of each probe, as in :func:`fit_linear_probe`.

    Raises:
        ValueError: shapes do not fit, a feature is not finite, or no class counts.
    """
    known, tested = train_tags.cpu(), test_tags.cpu()
    counted = (known.any(0) & ~known.all(0) & tested.any(0)).nonzero().squeeze(1).tolist()
    if not counted:
        raise ValueError("no class is shown by test images and by some but not all training images")
    scored = []
    for class_ in counted:
        logits = fit_linear_probe(train, known[:, class_].long(), penalty).logits(test).cpu()
        scores = logits[:, 1] - logits[:, 0]
        if not torch.isfinite(scores).all():
            raise ValueError("features of test images are not finite")
        scored.append((tested[:, class_].numpy(), scores.numpy()))
    draw, count = np.random.default_rng(0), len(tested)
    drawn = (draw.multinomial(count, np.full(count, 1 / count)) for _ in range(DRAWS))
    return MeanAveragePrecision(
        _mean(scored, np.ones(count, np.int64)),
        float(np.nanstd([_mean(scored, times) for times in drawn])),
    )


def _mean(
    scored: list[tuple[NDArray[np.bool_], NDArray[np.float32]]], times: NDArray[np.int64]
) -> float:
    """The mean over classes where each image counts so many times; NaN if none shows a class."""
    from sklearn.metrics import average_precision_score

    precisions = [
        average_precision_score(shown, scores, sample_weight=times)
        for shown, scores in scored
        if times[shown].any()
    ]
    return float(np.mean(precisions)) if precisions else float("nan")
