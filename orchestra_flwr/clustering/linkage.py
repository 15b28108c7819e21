"""Agglomerative clustering with a minimum size of groups."""

import numpy as np


def linkage_groups(similarity: np.ndarray, groups: int, min_members: int = 1) -> list[int]:
    """Agglomerative clustering with average linkage (UPGMA), cut into a number of groups.

    A smaller group then takes members of larger ones, the most similar ones first.

    Args:
        similarity: (n, n) symmetric, at most 1 up to rounding; its diagonal is not read.

    Returns:
        (n,) group of each; groups are numbered by their first members.

    Raises:
        ValueError: fewer than groups * min_members members.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage  # slow to import

    count = len(similarity)
    if groups < 1 or min_members < 1 or count < groups * min_members:
        raise ValueError(f"{count} members for {groups} groups of at least {min_members}")
    if groups == 1:
        return [0] * count
    rows, columns = np.triu_indices(count, 1)
    # Cosines of rounded vectors may be greater than 1, and a distance is never negative.
    tree = linkage(np.maximum(1 - similarity[rows, columns], 0), method="average")
    group_of = cut_tree(tree, n_clusters=groups)[:, 0]
    _fill_up(group_of, similarity, groups, min_members)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(int(group), len(numbers)) for group in group_of]


def _fill_up(group_of: np.ndarray, similarity: np.ndarray, groups: int, min_members: int) -> None:
    """Moves members, in place, until no group is too small."""
    while True:
        sizes = np.bincount(group_of, minlength=groups)
        if sizes.min() >= min_members:
            return
        small = int(sizes.argmin())
        alike = similarity[:, group_of == small].mean(1)
        alike[sizes[group_of] <= min_members] = -np.inf
        group_of[int(alike.argmax())] = small
