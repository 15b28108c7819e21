"""What an exported encoder is measured by."""

import torch

from orchestra_flwr.config import ScoresConfig
from orchestra_flwr.export.measures import accuracies


def test_at_most_a_tenth_of_the_images_vote_as_in_all_evaluations():
    """Two groups, of 25 and 5 images: where all of them vote, the larger one wins everywhere."""
    labels = torch.tensor([0] * 25 + [1] * 5)
    images = torch.zeros(30, 1, 2, 2, dtype=torch.uint8)
    images[labels == 1, :, 0] = 60
    images[:, :, 1] = 200

    def features(batch):
        return batch.flatten(1).float() / 255

    data = (images, labels)
    assert accuracies(features, data, data, ScoresConfig(knn_k=200))["knn"] == 1
