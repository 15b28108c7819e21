import numpy as np
import pytest

from orchestra_flwr.clustering.linkage import linkage_groups


def cosines(rows):
    rows = np.array(rows, float)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def slow_groups(similarity, groups):
    """UPGMA by its definition: the two groups of the largest mean similarity become one."""
    parts = [[i] for i in range(len(similarity))]
    while len(parts) > groups:
        pairs = [(a, b) for a in range(len(parts)) for b in range(a)]
        means = [similarity[np.ix_(parts[a], parts[b])].mean() for a, b in pairs]
        a, b = pairs[int(np.argmax(means))]
        parts[b] = sorted(parts[b] + parts.pop(a))
    return sorted(parts)


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 9])
def test_groups_are_those_of_average_linkage(groups):
    rows = np.random.default_rng(groups).normal(size=(9, 4))
    similarity = cosines(rows)
    numbers = linkage_groups(similarity, groups)
    parts = [[i for i in range(9) if numbers[i] == g] for g in range(groups)]
    assert sorted(parts) == slow_groups(similarity, groups)
    assert list(dict.fromkeys(numbers)) == list(range(groups))  # numbered by first members


def test_what_is_alike_is_together_whatever_the_order():
    rows = np.array([[1, 0.1], [-1, 0.1], [1, -0.2], [-1, 0.3], [1, 0]])
    assert linkage_groups(cosines(rows), 2) == [0, 1, 0, 1, 0]
    order = [3, 0, 4, 1, 2]
    assert linkage_groups(cosines(rows[order]), 2) == [0, 1, 1, 0, 1]


def test_an_outlier_is_joined_by_what_is_most_like_it():
    """Alone it would be a group of its own."""
    rows = [[1, 0], [1, 0.1], [1, 0.2], [1, 0.3], [-1, 0.5]]
    assert linkage_groups(cosines(rows), 2) == [0, 0, 0, 0, 1]
    assert linkage_groups(cosines(rows), 2, min_members=2) == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("least", [1, 2, 3])
def test_every_group_has_the_least_members(least):
    for seed in range(20):
        similarity = cosines(np.random.default_rng(seed).normal(size=(9, 3)))
        sizes = np.bincount(linkage_groups(similarity, 3, least), minlength=3)
        assert sizes.min() >= least and sizes.sum() == 9


def test_equal_members_are_still_so_many_groups():
    numbers = linkage_groups(np.ones((4, 4)), 2, min_members=2)
    assert sorted(numbers) == [0, 0, 1, 1]


def test_rounded_vectors_that_point_the_same_way_are_at_no_distance():
    """Of such updates: cosines of rounded unit vectors come to a little more than 1."""
    similarity = np.array([[1, 1 + 1e-4, 0], [1 + 1e-4, 1, 0], [0, 0, 1]])
    assert linkage_groups(similarity, 2) == [0, 0, 1]


def test_too_few_members_are_an_error():
    with pytest.raises(ValueError, match="3 members for 2 groups of at least 2"):
        linkage_groups(np.ones((3, 3)), 2, 2)
