import math

import pytest
import torch
from torch import nn

from orchestra_flwr.config import AugmentationConfig
from orchestra_flwr.data import SIMCLR, augment
from orchestra_flwr.evaluation import label_free
from orchestra_flwr.evaluation.features import effective_rank
from orchestra_flwr.evaluation.label_free import (
    LabelFreeScores,
    alignment,
    label_free_scores,
    lidar,
    lidar_of_images,
    uniformity,
)
from orchestra_flwr.models import normalise


def rows(count, dim=6, seed=0):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.hypot(*a) / math.hypot(*b)


def slow_alignment(features, augmented):
    pairs = list(zip(features.tolist(), augmented.tolist(), strict=True))
    return sum(cosine(a, b) for a, b in pairs) / len(pairs)


def slow_uniformity(features, tau):
    """Equation 5, term by term."""
    listed = features.tolist()
    logs = []
    for x in listed:
        inner = [math.exp(cosine(x, y) / tau) for y in listed]
        logs.append(math.log(sum(inner) / len(inner)))
    return -sum(logs) / len(logs)


@pytest.mark.parametrize("tau", [0.2, 1.0])
@pytest.mark.parametrize("count", [1, 2, 17])
def test_both_are_equation_5_term_by_term(count, tau, monkeypatch):
    monkeypatch.setattr(label_free, "ROWS", 5)
    features, augmented = rows(count) * 3, rows(count, seed=1)
    expected = slow_alignment(features, augmented)
    assert alignment(features, augmented) == pytest.approx(expected, abs=1e-6)
    assert uniformity(features, tau) == pytest.approx(slow_uniformity(features, tau), abs=1e-5)


def test_extremes():
    same = torch.ones(5, 3)
    assert alignment(same, same) == pytest.approx(1)
    assert uniformity(same) == pytest.approx(-5)  # -1 / tau
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert uniformity(opposite) == pytest.approx(-math.log((math.e**5 + math.e**-5) / 2))
    assert uniformity(torch.eye(64)) > uniformity(rows(64).abs())
    assert LabelFreeScores(0.5, -2.0, 3).score == pytest.approx(0.5 + 0.2 * -2.0)


class Pixels(nn.Module):
    """The features of an image are its normalised pixels; counts what mode it is in."""

    def forward(self, images):
        assert not self.training and not torch.is_grad_enabled()
        return images.flatten(1)


def images(count):
    drawn = torch.randint(0, 256, (count, 1, 8, 8), generator=torch.Generator().manual_seed(3))
    return drawn.to(torch.uint8)


def scores(count=11, batch_size=11):
    draw = torch.Generator().manual_seed(1)
    limits = AugmentationConfig(flip=False)
    return label_free_scores(Pixels().train(), images(count), limits, draw, batch_size, by="half")


def test_a_clients_images_are_paired_with_one_augmentation_each():
    told = scores()
    recipe = SIMCLR.limited(AugmentationConfig(flip=False))
    draw = torch.Generator().manual_seed(1)
    view = normalise(augment(images(11), [recipe], draw).images[0], "half").flatten(1)
    plain = normalise(images(11).float() / 255, "half").flatten(1)
    assert told.alignment == pytest.approx(slow_alignment(plain, view), abs=1e-5)
    assert told.uniformity == pytest.approx(slow_uniformity(plain, 0.2), abs=1e-5)
    assert told.effective_rank == pytest.approx(effective_rank(plain))
    assert scores(batch_size=4).uniformity == pytest.approx(told.uniformity, abs=1e-6)
    assert scores() == told


def slow_lidar(views):
    """The paper's algorithm 1, sum by sum, on features of mean variance 1."""
    views = views.double()
    count, number, dim = views.shape
    rows = views.reshape(-1, dim)
    views = views / (rows - rows.mean(0)).square().mean().sqrt()
    means = views.mean(0)
    between, within = torch.zeros(dim, dim).double(), torch.zeros(dim, dim).double()
    for image in range(number):
        off = means[image] - means.mean(0)
        between += torch.outer(off, off) / (number - 1)
        for view in range(count):
            off = views[view, image] - means[image]
            within += torch.outer(off, off) / (number * (count - 1))
    values, vectors = torch.linalg.eigh(within + 1e-4 * torch.eye(dim).double())
    root = vectors @ torch.diag(values**-0.5) @ vectors.T
    shares = torch.linalg.eigvalsh(root @ between @ root).clamp(min=0)
    shares = [float(share / shares.sum()) for share in shares]
    return math.exp(-sum(share * math.log(share) for share in shares if share > 0))


@pytest.mark.parametrize(("count", "number", "dim"), [(2, 30, 4), (5, 3, 6), (4, 12, 12)])
def test_lidar_is_the_papers_algorithm(count, number, dim):
    draw = torch.Generator().manual_seed(2)
    views = 3 * torch.randn(1, number, dim, generator=draw) + torch.randn(
        count, number, dim, generator=draw
    )
    assert lidar(views) == pytest.approx(slow_lidar(views), rel=1e-6)
    assert lidar(7 * views + 3) == pytest.approx(lidar(views), rel=1e-4)


def test_lidar_counts_the_dimensions_that_augmentations_leave_alone():
    draw = torch.Generator().manual_seed(2)
    noise = 0.3 * torch.randn(10, 400, 8, generator=draw)
    clean = torch.randn(1, 400, 8, generator=draw)
    three = clean.clone()
    three[..., 3:] = 0  # the others are of the augmentations alone
    assert 2.9 < lidar(three + noise) < 3.4
    assert 7.5 < lidar(clean + noise) <= 8
    same = torch.ones(4, 5, 3)
    assert lidar(same) == lidar(torch.randn(4, 1, 3)) == 1
    assert math.isnan(lidar(torch.full((2, 3, 4), math.nan)))


def lidar_of(images):
    draw = torch.Generator().manual_seed(1)
    limits = AugmentationConfig(flip=False)
    return lidar_of_images(Pixels().train(), images, limits, draw, 7, by="half")


def test_lidar_is_of_ten_augmentations_of_a_thousand_images_at_most(monkeypatch):
    monkeypatch.setattr(label_free, "LIDAR_IMAGES", 6)
    recipe = SIMCLR.limited(AugmentationConfig(flip=False))
    draw = torch.Generator().manual_seed(1)
    some = images(11)[::2]
    views = [augment(some, [recipe], draw).images[0] for _ in range(10)]
    expected = slow_lidar(torch.stack([normalise(view, "half").flatten(1) for view in views]))
    assert lidar_of(images(11)) == lidar_of(some) == pytest.approx(expected, rel=1e-4)


def test_one_image_has_scores_in_their_ranges():
    told = scores(count=1)
    for name, (least, most) in LabelFreeScores.ranges(64).items():
        assert least - 1e-6 <= getattr(told, name) <= most, name


def test_clients_count_by_their_images():
    one, two = LabelFreeScores(0.0, 1.0, 2.0), LabelFreeScores(1.0, 2.0, 3.0)
    assert LabelFreeScores.mean([(1, one), (3, two)]) == LabelFreeScores(0.75, 1.75, 2.75)
