"""Class-balanced subsets; the same for every seed, so that runs can be compared."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestra_flwr.data.images import Dataset, ImageSet

SUBSET_SEED = 20220717  # any constant; changing it changes every limited data set


def balanced_subset(
    labels: NDArray[np.int64] | None, count: int, limit: int | None
) -> NDArray[np.int64]:
    """Indices of at most `limit` of `count` images, in file order.

    Classes get equal shares as far as they have images; without labels the subset is random. A
    larger subset contains a smaller one.

    Args:
        labels: (count,), or None.
        limit: size of the subset; None, or at least `count`, takes all.

    Returns:
        Sorted indices, int64, (min(limit, count),).
    """
    if limit is None or limit >= count:
        return np.arange(count)
    generator = np.random.default_rng(SUBSET_SEED)
    order = generator.permutation(count)
    if labels is None:
        return np.sort(order[:limit])
    rank = np.empty(count, dtype=np.int64)  # of an image within its own class, shuffled
    for label in np.unique(labels):
        members = order[labels[order] == label]
        rank[members] = np.arange(len(members))
    tie = generator.permutation(count)
    return np.sort(np.lexsort((tie, rank))[:limit])


def stratified_share(labels: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Indices of a random share of each class; at least one image of each is left out.

    Args:
        labels: (count,).
        share: of each class's images, rounded.

    Returns:
        Sorted indices, int64.
    """
    order = np.random.default_rng(SUBSET_SEED).permutation(len(labels))
    by_class = [order[labels[order] == label] for label in np.unique(labels)]
    chosen = [m[: min(round(share * len(m)), len(m) - 1)] for m in by_class]
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *chosen]))


def limited(images: ImageSet, limit: int | None) -> ImageSet:
    """A class-balanced choice of at most `limit` images, in their order; None: all of them."""
    return images.select(_chosen(images, limit))


def limited_dataset(dataset: Dataset, limit: int | None) -> Dataset:
    """As :func:`limited`, for training and test images; other facts are kept for those chosen."""
    if limit is None:
        return dataset
    chosen = _chosen(dataset.train, limit)
    return replace(
        dataset,
        train=dataset.train.select(chosen),
        test=dataset.test and limited(dataset.test, limit),
        shown=None if dataset.shown is None else dataset.shown[chosen],
    )


def beyond_limit(dataset: Dataset, limit: int | None) -> ImageSet | None:
    """The images with shown labels that :func:`limited_dataset` leaves out.

    Together with those that it keeps they are at most `limit`; None: there are none.
    """
    if dataset.shown is None or limit is None:
        return None
    left = dataset.shown.clone()
    left[_chosen(dataset.train, limit)] = False
    kept = int(dataset.shown.sum()) - int(left.sum())
    others = limited(dataset.train.select(left.nonzero().squeeze(1)), limit - kept)
    return others if len(others) else None


def _chosen(images: ImageSet, limit: int | None) -> Tensor:
    labels = None if images.labels is None else images.labels.numpy()
    return torch.from_numpy(balanced_subset(labels, len(images), limit))
