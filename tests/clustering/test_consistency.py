from itertools import combinations

import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.clustering import assignment_measures, consistency


def unit(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=generator), dim=1)


def nearest(points, centroids):
    return [max(range(len(centroids)), key=lambda k: float(p @ centroids[k])) for p in points]


def slow_consistency(points, before, after):
    old, new = nearest(points, before), nearest(points, after)
    pairs = list(combinations(range(len(points)), 2))
    was = {(i, j) for i, j in pairs if old[i] == old[j]}
    is_ = {(i, j) for i, j in pairs if new[i] == new[j]}
    return len(was & is_) / len(was | is_)


def test_consistency_counts_pairs_of_points_that_stay_together():
    points, before, after = unit(30, 4, seed=0), unit(5, 4, seed=1), unit(5, 4, seed=2)
    assert consistency(points, before, after) == pytest.approx(
        slow_consistency(points, before, after)
    )
    assert 0 < consistency(points, before, after) < 1


def test_a_hundred_thousand_points_take_little_memory():
    """All pairs of them would take 10 GB."""
    points = F.normalize(torch.tensor([[1.0, 0.1], [0.1, 1.0]]).repeat(50_000, 1), dim=1)
    together = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    assert consistency(points, torch.eye(2), torch.eye(2)) == 1
    assert consistency(points, torch.eye(2), together) == pytest.approx(0.5, abs=1e-4)


def test_other_names_of_the_same_clusters_are_consistent():
    points, centroids = unit(30, 4, seed=0), unit(5, 4, seed=1)
    assert consistency(points, centroids, centroids.flip(0)) == 1


def test_points_that_never_share_a_cluster_are_consistent():
    points = torch.eye(3)
    assert consistency(points, points, points.flip(0)) == 1


def test_agreement_is_the_share_of_images_with_one_nearest_centroid():
    centroids = torch.eye(4)
    target = centroids[[0, 1, 2, 3]]
    online = centroids[[0, 1, 3, 2]]
    assert assignment_measures(target, online, centroids, 0.1)["agreement"] == 0.5


@pytest.mark.parametrize(("temperature", "entropy"), [(1e-3, 0.0), (1e3, 1.3863)])
def test_assignment_entropy_lies_between_certain_and_even(temperature, entropy):
    centroids = torch.eye(4)
    measures = assignment_measures(centroids, centroids, centroids, temperature)
    assert measures["assignment_entropy"].item() == pytest.approx(entropy, abs=1e-4)


def test_assignment_entropy_is_that_of_the_softmax_of_cosines():
    target, centroids = unit(6, 4, seed=0), unit(3, 4, seed=1)
    rows = F.softmax(target @ centroids.T / 0.1, dim=1).tolist()
    entropies = [torch.distributions.Categorical(torch.tensor(row)).entropy() for row in rows]
    measures = assignment_measures(target, target, centroids, 0.1)
    assert measures["assignment_entropy"].item() == pytest.approx(float(sum(entropies) / 6))
