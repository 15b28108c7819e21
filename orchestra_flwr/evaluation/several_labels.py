"""The evaluation of frozen features on images that may show several classes."""

import numpy as np
import torch
from torch import Tensor

from orchestra_flwr.evaluation.linear_probe import fit_linear_probe


def mean_average_precision(
    train: Tensor, train_tags: Tensor, test: Tensor, test_tags: Tensor, penalty: float | None = None
) -> float:
    """Mean over the classes of the average precision of one-vs-rest linear probes (mAP).

    A class counts if it can be learned and tested: some training images show it and some do not,
    and a test image shows it.

    Args:
        train: (N, dim) features, finite.
        train_tags: (N, K) bool, which classes an image shows.
        test: (M, dim) features on the same device.
        test_tags: (M, K) bool.
        penalty: of each probe, as in :func:`fit_linear_probe`.

    Returns:
        0 to 1; about the mean share of images that show a class if features carry no information.

    Raises:
        ValueError: shapes do not fit, a feature is not finite, or no class counts.
    """
    from sklearn.metrics import average_precision_score

    known, tested = train_tags.cpu(), test_tags.cpu()
    counted = (known.any(0) & ~known.all(0) & tested.any(0)).nonzero().squeeze(1).tolist()
    if not counted:
        raise ValueError("no class is shown by test images and by some but not all training images")
    precisions = []
    for class_ in counted:
        logits = fit_linear_probe(train, known[:, class_].long(), penalty).logits(test).cpu()
        scores = logits[:, 1] - logits[:, 0]
        if not torch.isfinite(scores).all():
            raise ValueError("features of test images are not finite")
        precisions.append(average_precision_score(tested[:, class_].numpy(), scores.numpy()))
    return float(np.mean(precisions))
