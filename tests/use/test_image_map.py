"""The map and its clusters, also of few and of equal images."""

import numpy as np
import pytest
import torch

from orchestra_flwr.use.image_map import cluster_images, place_images


def blobs(*counts, dim=10):
    centres = 8 * torch.eye(dim)
    return torch.cat([centres[i] + torch.randn(n, dim) for i, n in enumerate(counts)])


@pytest.mark.slow
def test_images_of_one_kind_lie_together():
    positions = place_images(blobs(40, 40), seed=0)
    assert positions.shape == (80, 2) and positions.min() >= 0 and positions.max() <= 1
    spread = np.linalg.norm(positions[:40] - positions[:40].mean(0), axis=1).mean()
    other = np.linalg.norm(positions[:40].mean(0) - positions[40:].mean(0))
    assert other > 2 * spread
    assert np.array_equal(positions, place_images(blobs_again := blobs(40, 40), 0)) is False
    assert np.array_equal(place_images(blobs_again, 0), place_images(blobs_again, 0))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("dim", [1, 3])
def test_few_images_have_places(count, dim):
    for vectors in (torch.randn(count, dim), torch.ones(count, dim)):
        positions = place_images(vectors, 0)
        assert positions.shape == (count, 2) and np.isfinite(positions).all()
        assert positions.min() >= 0 and positions.max() <= 1
        clusters = cluster_images(vectors, 12, 0)
        assert len(clusters.labels) == count and sum(map(len, clusters.typical)) == count


def test_clusters_are_the_blobs_the_largest_first():
    clusters = cluster_images(blobs(10, 30, 20), 3, seed=0)
    assert [len(members) for members in clusters.typical] == [30, 20, 10]
    assert {*clusters.labels[:10]} == {2} and {*clusters.labels[10:40]} == {0}
    assert {*clusters.typical[1].tolist()} == {*range(40, 60)}


def test_the_most_typical_image_is_in_the_middle():
    vectors = torch.tensor([[1.0, 0.02], [1.0, 0.0], [1.0, -0.02], [0.0, 1.0], [0.01, 1.0]])
    assert cluster_images(vectors, 2, 0).typical[0][0] == 1
