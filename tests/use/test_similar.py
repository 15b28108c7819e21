"""Neighbours, near-duplicates and outliers, against comparisons one by one."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from orchestra_flwr.use import similar
from orchestra_flwr.use.similar import (
    Neighbours,
    near_duplicates,
    nearest_neighbours,
    outlier_scores,
    outliers,
)


@pytest.mark.parametrize("at_once", [1, 200, 2**25])
def test_neighbours_are_those_with_the_largest_cosines(monkeypatch, at_once):
    monkeypatch.setattr(similar, "SIMILARITIES_AT_ONCE", at_once)
    vectors = torch.randn(40, 6) * torch.rand(40, 1).exp()
    nearest = nearest_neighbours(vectors, 7)
    for i in range(40):
        cosines = {
            j: float(cosine_similarity(vectors[i], vectors[j], dim=0)) for j in range(40) if j != i
        }
        expected = sorted(cosines, key=cosines.get, reverse=True)[:7]
        assert nearest.indices[i].tolist() == expected
        torch.testing.assert_close(nearest.cosines[i], torch.tensor([cosines[j] for j in expected]))


def test_few_images_have_few_neighbours():
    assert nearest_neighbours(torch.randn(3, 4), 12).indices.shape == (3, 2)
    alone = nearest_neighbours(torch.randn(1, 4), 12)
    assert alone.indices.shape == (1, 0) and near_duplicates(alone) == []


@pytest.mark.parametrize("offset", [0.0, 30.0])  # 30: all embeddings are near to each other
def test_copies_are_found_whatever_the_scale(offset):
    vectors = torch.randn(300, 16) + offset
    copies = torch.stack([vectors[7], vectors[7] + 0.02 * torch.randn(16), 3 * vectors[50]])
    groups = near_duplicates(nearest_neighbours(torch.cat([vectors, copies]), 12))
    assert groups == [[7, 300, 301], [50, 302]]


def test_images_without_copies_have_no_near_duplicates():
    assert near_duplicates(nearest_neighbours(torch.randn(300, 16), 12)) == []


@pytest.mark.parametrize("count", [2, 5, 9, 10])
def test_of_few_images_only_copies_are_near_duplicates(count):
    """The farthest of few neighbours may be no image that is alike, but any other one."""
    vectors = torch.randn(count, 16)
    vectors[1] = vectors[0] + 0.02 * torch.randn(16)  # alike, and still another image
    assert near_duplicates(nearest_neighbours(vectors, 12)) == []
    vectors[1] = 3 * vectors[0]
    assert near_duplicates(nearest_neighbours(vectors, 12)) == [[0, 1]]


def test_all_images_alike_are_one_group():
    groups = near_duplicates(nearest_neighbours(torch.ones(6, 4), 12))
    assert groups == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("copies", [11, 12, 20])
def test_where_most_images_have_ten_copies_all_are_found_and_none_is_far(copies):
    """Their distances are 0 but for rounding, and so is what is usual."""
    vectors = torch.randn(40, 512).repeat(copies, 1)
    neighbours = nearest_neighbours(vectors, 12)
    groups = near_duplicates(neighbours)
    assert sorted(position for group in groups for position in group) == [*range(40 * copies)]
    assert all(len({position % 40 for position in group}) == 1 for group in groups)
    assert outliers(neighbours) == []


def test_outliers_are_beyond_tukeys_fence_and_may_be_none():
    vectors = torch.randn(200, 8) * 0.1 + 5
    vectors[42], vectors[77] = -5, torch.tensor([5.0] * 7 + [-20])
    neighbours = nearest_neighbours(vectors, 12)
    scores = outlier_scores(neighbours).numpy()
    lower, upper = np.percentile(scores, 25), np.percentile(scores, 75)
    beyond = [i for i in range(200) if scores[i] > upper + 1.5 * (upper - lower)]
    positions = outliers(neighbours)
    assert sorted(positions) == beyond and {42, 77} <= set(positions) and len(positions) < 40
    assert [scores[i] for i in positions] == sorted((scores[i] for i in positions), reverse=True)
    assert outliers(nearest_neighbours(torch.ones(6, 4), 12)) == []
    assert outliers(nearest_neighbours(torch.ones(1, 4), 12)) == []


def test_what_is_far_from_all_others_is_the_first_outlier():
    vectors = torch.randn(100, 8) + 5
    vectors[42] = -5
    scores = outlier_scores(nearest_neighbours(vectors, 12))
    assert scores.argmax() == 42
    worked = outlier_scores(Neighbours(torch.zeros(1, 2), torch.tensor([[0.75, 0.25]])))
    assert worked.tolist() == [0.5]
