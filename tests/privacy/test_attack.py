"""Who has an encoder and what a client sent: can it tell the client's images from others?"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from orchestra_flwr.clustering import local_clustering, private_clustering
from orchestra_flwr.methods import build_method
from orchestra_flwr.privacy import calibrate

MEMBERS, OTHERS, CLIENTS = 128, 128, 12


@pytest.fixture
def features(tiny):
    """(clients, members and others, d) target features: each client has digits of its own draw."""
    method = build_method(tiny("model.projector_dim=64"), 1).eval()
    digits = torch.from_numpy(load_digits().images).float()[:, None] / 8 - 1
    with torch.no_grad():
        found = F.normalize(method.target_projector(method.target_backbone(digits)), dim=1)
    orders = (torch.randperm(len(found), generator=seeded(client)) for client in range(CLIENTS))
    return torch.stack([found[order[: MEMBERS + OTHERS]] for order in orders])


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def attack(features, send):
    """Mean AUC over the clients of the score "cosine to the nearest row that was sent"."""
    truth = np.arange(MEMBERS + OTHERS) < MEMBERS
    scores = []
    for client, rows in enumerate(features):
        sent = send(rows[:MEMBERS], client)
        guess = (rows @ sent.T).amax(1) if len(sent) else torch.zeros(len(rows))
        scores.append(roc_auc_score(truth, guess))
    return float(np.mean(scores))


def test_features_give_every_image_away_and_centroids_hardly_any(features):
    """.5 is a guess. The published code uploads features, and lets clusters have one member."""

    def centroids(clusters, k_min):
        return lambda rows, client: (
            local_clustering(rows, clusters, seeded(client), k_min=k_min).centroids
        )

    def private(rows, client):
        return private_clustering(rows, 8, calibrate(1.0, 1e-3), client.to_bytes(32))

    found = {
        "features": attack(features, lambda rows, client: rows),
        "clusters of one": attack(features, centroids(MEMBERS, 1)),
        "clusters of 16": attack(features, centroids(8, 2)),
        "private": attack(features, private),
    }
    print("AUC:", {name: round(auc, 3) for name, auc in found.items()})
    assert found["features"] > 0.999 and found["clusters of one"] > 0.999
    assert 0.5 < found["clusters of 16"] < 0.62
    assert abs(found["private"] - 0.5) < 0.05
