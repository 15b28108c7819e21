"""Groups of what is alike: average linkage, with a least size of groups."""

from __future__ import annotations

import numpy as np


def linkage_groups(similarity: np.ndarray, groups: int, least: int = 1) -> list[int]:
    """Agglomerative clustering with average linkage (UPGMA), cut into so many groups.

    A group that is smaller than `least` then takes in, one by one, what is most alike on average to
    it among the members of groups that have more.

    Args:
        similarity: (n, n) symmetric, at most 1 but for rounding; only what is off its diagonal
            counts.
        groups: how many.
        least: members of each group, at least.

    Returns:
        For each of the n its group; groups are numbered by their first members.

    Raises:
        ValueError: fewer than groups * least members.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage  # slow to import

    count = len(similarity)
    if groups < 1 or least < 1 or count < groups * least:
        raise ValueError(f"{count} members for {groups} groups of at least {least}")
    if groups == 1:
        return [0] * count
    rows, columns = np.triu_indices(count, 1)
    # Cosines of rounded vectors may be greater than 1, and a distance is never negative.
    tree = linkage(np.maximum(1 - similarity[rows, columns], 0), method="average")
    group_of = cut_tree(tree, n_clusters=groups)[:, 0]
    _fill_up(group_of, similarity, groups, least)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(int(group), len(numbers)) for group in group_of]


def _fill_up(group_of: np.ndarray, similarity: np.ndarray, groups: int, least: int) -> None:
    """Moves members, in place, until no group is too small."""
    while True:
        sizes = np.bincount(group_of, minlength=groups)
        if sizes.min() >= least:
            return
        small = int(sizes.argmin())
        alike = similarity[:, group_of == small].mean(1)
        alike[sizes[group_of] <= least] = -np.inf
        group_of[int(alike.argmax())] = small
