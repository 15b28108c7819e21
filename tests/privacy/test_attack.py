"""Who has an encoder and what a client sent: can it tell the client's images from others?"""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from orchestra_flwr.clustering.local_clusters import local_clustering
from orchestra_flwr.clustering.private_kmeans import private_clustering
from orchestra_flwr.methods import build_method
from orchestra_flwr.privacy.accounting import calibrate
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, train_round

MEMBERS, OTHERS, CLIENTS = 128, 128, 12
ROUNDS, PUBLIC, SHADOWS = 20, 320, 3
TRUTH = np.arange(MEMBERS + OTHERS) < MEMBERS
# Only then a projector has the statistics that evaluation mode needs.
EVALUATED = ("clustering=private", "privacy.epsilon=1")


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def digits():
    """(1797, 1, 8, 8) uint8."""
    images = torch.from_numpy(load_digits().images)[:, None]
    return (images * 255 / 16).round().to(torch.uint8)


def features(method, images):
    """(n, d) target features."""
    method.eval()
    with torch.no_grad():
        return method._target_features(images.float() / 127.5 - 1)


def draws(images, clients):
    """Members and others of each client: indices, each client's of its own draw."""
    chosen = (torch.randperm(len(images), generator=seeded(client)) for client in range(clients))
    return [images[order[: MEMBERS + OTHERS]] for order in chosen]


def centroids(clusters, k_min):
    return lambda rows, seed: local_clustering(rows, clusters, seeded(seed), k_min=k_min).centroids


def private(rows, seed):
    return private_clustering(rows, 8, calibrate(1.0, 1e-3), seed.to_bytes(32))


def nearest(rows, sent):
    """Cosine of each row to the nearest that was sent."""
    return (rows @ sent.T).amax(1) if len(sent) else torch.zeros(len(rows))


def auc(scores):
    return float(np.mean([roc_auc_score(TRUTH, row) for row in scores]))


@pytest.mark.slow
def test_features_give_every_image_away_and_centroids_hardly_any(tiny, digits):
    """One round. The published code uploads features, and lets clusters have one member."""
    rows = features(build_method(tiny("model.projector_dim=64", *EVALUATED), 1), digits)
    senders = {
        "features": lambda rows, seed: rows,
        "clusters of one": centroids(MEMBERS, 1),
        "clusters of 16": centroids(8, 2),
        "private": private,
    }
    clients = draws(rows, CLIENTS)
    areas = {
        name: auc([nearest(c, send(c[:MEMBERS], seed)) for seed, c in enumerate(clients)])
        for name, send in senders.items()
    }
    print("\nAUC after one round:", {name: round(value, 3) for name, value in areas.items()})
    assert areas["features"] > 0.999 and areas["clusters of one"] > 0.999
    assert 0.5 < areas["clusters of 16"] < 0.62
    assert abs(areas["private"] - 0.5) < 0.05


@pytest.mark.slow
def test_rounds_add_up_for_centroids_and_hardly_for_private_ones(tiny, digits):
    """A better attacker, over the rounds of a run.

    It clusters other people's digits as clients would, which shows how near a row an image lies
    that was not there; scores are cosines beyond that, averaged over rounds. The encoder is
    trained on those other people's digits, so that by itself it says nothing about the clients'.
    """
    config = tiny(
        "model.width=16",
        "model.projector_dim=64",
        "training.lr=0.03",
        "method.ema=0.996",
        *EVALUATED,
    )
    torch.manual_seed(0)
    learner = build_learner(config, 1)
    method = learner.method
    order = torch.randperm(len(digits), generator=seeded(99))
    public, rest = digits[order[:PUBLIC]], digits[order[PUBLIC:]]
    clients = draws(rest, 4)
    shadows = [torch.randperm(PUBLIC, generator=seeded(100 + s))[:MEMBERS] for s in range(SHADOWS)]
    senders = {"clusters of 16": centroids(8, 2), "private": private}
    scores = {name: np.zeros((ROUNDS, len(clients), len(TRUTH))) for name in senders}
    for round_ in range(ROUNDS):
        reference = features(method, public)
        method.global_centroids.copy_(centroids(4, 2)(reference, round_))
        for name, send in senders.items():
            others = [send(reference[rows], 1000 * round_ + s) for s, rows in enumerate(shadows)]
            for c, images in enumerate(clients):
                rows = features(method, images)
                expected = torch.stack([nearest(rows, sent) for sent in others])
                beyond = nearest(rows, send(rows[:MEMBERS], 1000 * round_ + 500 + c))
                scores[name][round_, c] = beyond - expected.mean(0)
        seed = ClientSeed(0, round_ + 1, "public")
        train_round(learner, public, config, seed)
    by_sender = {
        name: {count: auc(rows[:count].mean(0)) for count in (1, 5, ROUNDS)}
        for name, rows in scores.items()
    }
    for name, areas in by_sender.items():
        print(f"\nAUC of {name} by rounds:", {n: round(value, 3) for n, value in areas.items()})
    assert by_sender["clusters of 16"][1] < 0.75
    assert by_sender["clusters of 16"][ROUNDS] > by_sender["clusters of 16"][1] + 0.05
    assert by_sender["private"][ROUNDS] < 0.6 < by_sender["clusters of 16"][ROUNDS] - 0.05
