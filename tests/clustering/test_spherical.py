import torch

from orchestra_flwr.clustering.spherical import equal_mass_clustering


def test_a_centroid_whose_points_cancel_each_other_out_stays():
    up, right = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0])
    points, centroids = torch.stack([up, up, right, -right]), torch.stack([up, -up])
    torch.testing.assert_close(equal_mass_clustering(points, centroids), centroids)
