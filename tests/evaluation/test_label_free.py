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
    uniformity,
)
from orchestra_flwr.models import normalise
from orchestra_flwr.square_image import resize


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
    monkeypatch.setattr(label_free, "SIMILARITIES_AT_ONCE", 5 * count)
    features, augmented = rows(count) * 3, rows(count, seed=1)
    expected = slow_alignment(features, augmented)
    assert alignment(features, augmented) == pytest.approx(expected, abs=1e-6)
    assert uniformity(features, tau) == pytest.approx(slow_uniformity(features, tau), abs=1e-5)


def test_uniformity_of_many_images_takes_little_memory(monkeypatch):
    monkeypatch.setattr(label_free, "SIMILARITIES_AT_ONCE", 3000)
    blocks = []

    def split(tensor, rows):
        blocks.append(rows)
        return tensor.split(rows)

    monkeypatch.setattr(torch, "split", split)
    for count in (10, 1000, 5000):
        uniformity(rows(count))
    assert blocks == [300, 3, 1]


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
    measured = scores()
    recipe = SIMCLR.limited(AugmentationConfig(flip=False))
    draw = torch.Generator().manual_seed(1)
    view = normalise(augment(images(11), [recipe], draw).images[0], "half").flatten(1)
    plain = normalise(images(11).float() / 255, "half").flatten(1)
    assert measured.alignment == pytest.approx(slow_alignment(plain, view), abs=1e-5)
    assert measured.uniformity == pytest.approx(slow_uniformity(plain, 0.2), abs=1e-5)
    assert measured.effective_rank == pytest.approx(effective_rank(plain))
    assert scores(batch_size=4).uniformity == pytest.approx(measured.uniformity, abs=1e-6)
    assert scores() == measured


def test_large_images_are_scored_in_the_size_of_views():
    large = images(44).view(11, 1, 16, 16)
    shrunk = resize(large, 8)

    def scored(pixels, **limits):
        draw = torch.Generator().manual_seed(1)
        return label_free_scores(
            Pixels(), pixels, AugmentationConfig(**limits), draw, 11, by="half"
        )

    assert scored(large, view_size=8) == scored(shrunk) != scored(large)
    assert scored(shrunk, view_size=16) == scored(shrunk)


def test_one_image_has_scores_in_their_ranges():
    measured = scores(count=1)
    for name, (least, most) in LabelFreeScores.ranges(64).items():
        assert least - 1e-6 <= getattr(measured, name) <= most, name


def test_clients_count_by_their_images():
    one, two = LabelFreeScores(0.0, 1.0, 2.0), LabelFreeScores(1.0, 2.0, 3.0)
    assert LabelFreeScores.mean([(1, one), (3, two)]) == LabelFreeScores(0.75, 1.75, 2.75)
