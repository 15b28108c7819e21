"""Who has an encoder and what a client sent: what do the images behind it look like?

Feature inversion (Mahendran and Vedaldi, "Understanding Deep Image Representations by Inverting
Them", CVPR 2015): images are searched, by gradient, that the encoder maps to what was sent. The
attacker knows other people's digits, and looks for digits: 30 principal components of those.
"""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from orchestra_flwr.clustering.local_clusters import local_clustering
from orchestra_flwr.clustering.private_kmeans import private_clustering
from orchestra_flwr.config import load_config
from orchestra_flwr.methods import build_method
from orchestra_flwr.privacy.accounting import calibrate

CLIENT, PUBLIC, ATTACKED = 128, 600, 16
COMPONENTS, STEPS, PRIOR = 30, 120, 3e-3


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def encode():
    """The default encoder of the digits, untrained, from (n, 1, 8, 8) in [0, 1] to features."""
    torch.manual_seed(0)
    method = (
        build_method(load_config(["data=digits", "model.projector_dim=256"]), 1)
        .eval()
        .requires_grad_(False)
    )

    def features(images):
        return F.normalize(method.target_projector(method.target_backbone(2 * images - 1)), dim=1)

    return features


@pytest.fixture(scope="module")
def digits():
    """(client's, another client's, public) images."""
    images = torch.from_numpy(load_digits().images).float()[:, None] / 16
    order = torch.randperm(len(images), generator=seeded(0))
    return images[order].split([CLIENT, CLIENT, PUBLIC, len(images) - 2 * CLIENT - PUBLIC])[:3]


def invert(sent, encode, public):
    """(n, 1, 8, 8) images whose features point where the (n, d) rows that were sent point."""
    flat = public.flatten(1)
    mean = flat.mean(0)
    _, spread, axes = torch.linalg.svd(flat - mean, full_matrices=False)
    basis = axes[:COMPONENTS] * spread[:COMPONENTS, None] / len(flat) ** 0.5
    code = (0.1 * torch.randn(len(sent), COMPONENTS, generator=seeded(1))).requires_grad_()
    optimizer = torch.optim.Adam([code], lr=0.1)
    for _ in range(STEPS):
        images = (mean + code @ basis).view(-1, 1, 8, 8)
        distance = 1 - (encode(images) * sent).sum(1) + PRIOR * code.square().mean(1)
        optimizer.zero_grad()
        distance.sum().backward()
        optimizer.step()
    return images.detach().clamp(0, 1)


def correlation(one, other):
    """(n, m) of every image with every other."""
    one, other = (x.flatten(1) - x.flatten(1).mean(1, keepdim=True) for x in (one, other))
    return F.normalize(one, dim=1) @ F.normalize(other, dim=1).T


def likeness(found, mine, others):
    """Of the most similar image of the client: correlation and PSNR; correlation of another's."""
    best = correlation(found, mine).max(1)
    error = (found - mine[best.indices]).square().mean((1, 2, 3))
    other = correlation(found, others).amax(1)
    return float(best.values.mean()), float(-10 * error.log10().mean()), float(other.mean())


@pytest.mark.slow
def test_features_show_the_image_and_centroids_only_a_digit(encode, digits):
    mine, others, public = digits
    features = encode(mine)
    private = private_clustering(features, 8, calibrate(1.0, 1e-3), bytes(32))
    assert len(private) > 1
    inverted = {
        name: invert(sent, encode, public)
        for name, sent in {
            "features": features[:ATTACKED],
            "centroids of 16": local_clustering(features, 8, seeded(2), k_min=2).centroids,
            "private": private,
            "nothing": F.normalize(torch.randn(8, 256, generator=seeded(3)), dim=1),
        }.items()
    }
    likenesses = {name: likeness(images, mine, others) for name, images in inverted.items()}
    candidates = correlation(inverted["features"], torch.cat([mine, others]))
    named = float((candidates.argmax(1) == torch.arange(ATTACKED)).float().mean())
    print(f"\nrecognised among {2 * CLIENT} candidates: {named:.0%} of single images' features")
    for name, (mine_, psnr, others_) in likenesses.items():
        print(f"{name}: correlation {mine_:.2f}, PSNR {psnr:.1f} dB, with another's {others_:.2f}")

    # A feature shows its own image, to a likeness that no image of somebody else has ...
    assert named > 0.9
    assert likenesses["features"][0] > 0.95 and likenesses["features"][1] > 20
    assert likenesses["features"][0] > likenesses["features"][2] + 0.05
    # ... a centroid of 16 shows the kind of digit, as much the client's as anybody's ...
    assert likenesses["features"][1] > likenesses["centroids of 16"][1] + 5
    assert abs(likenesses["centroids of 16"][0] - likenesses["centroids of 16"][2]) < 0.03
    # ... and a private one no more than a random direction.
    assert likenesses["centroids of 16"][0] > likenesses["private"][0] + 0.05
    assert abs(likenesses["private"][0] - likenesses["nothing"][0]) < 0.06
    assert abs(likenesses["private"][0] - likenesses["private"][2]) < 0.06
