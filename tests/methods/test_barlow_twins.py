"""The cross-correlation loss of Barlow Twins, against loops, and what must not change it."""

import math

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import Batch, build_method
from orchestra_flwr.methods.barlow_twins import EPSILON, cross_correlation_loss


def features(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def slow_loss(first, second, redundancy):
    """Equations 1 and 2, number by number; by D."""

    def column(rows, k):
        values = [row[k] for row in rows]
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        return [(value - mean) / math.sqrt(variance + EPSILON) for value in values]

    count, dim, total = len(first), len(first[0]), 0.0
    for i in range(dim):
        for j in range(dim):
            pairs = zip(column(first, i), column(second, j), strict=True)
            correlation = sum(a * b for a, b in pairs) / count
            total += (1 - correlation) ** 2 if i == j else redundancy * correlation**2
    return total / dim


@pytest.mark.parametrize(("count", "dim"), [(2, 3), (5, 4), (9, 2)])
@pytest.mark.parametrize("redundancy", [0.0, 0.005, 1.0])
def test_agrees_with_the_formula(count, dim, redundancy):
    first, second = features(count, dim, seed=1), 3 * features(count, dim, seed=2) + 5
    loss = cross_correlation_loss(first, second, redundancy)
    assert loss.dtype == torch.float64
    expected = slow_loss(first.tolist(), second.tolist(), redundancy)
    assert loss.item() == pytest.approx(expected, rel=1e-10)


def test_mean_and_scale_of_each_feature_do_not_matter():
    first, second = features(64, 4, seed=1), features(64, 4, seed=2)
    loss = cross_correlation_loss(first, second, 0.1)
    moved = cross_correlation_loss(first * torch.tensor([1, 20, 7, 9]) + 3, second, 0.1)
    torch.testing.assert_close(moved, loss, rtol=1e-4, atol=1e-5)


def test_features_that_agree_and_are_independent_have_none_and_collapsed_ones_1():
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert cross_correlation_loss(signs, signs, 1).item() == pytest.approx(0, abs=1e-8)
    alike = torch.ones(4, 2)
    assert cross_correlation_loss(alike, alike, 1).item() == pytest.approx(1)
    twice = signs[:, :1].repeat(1, 2)  # the second feature says what the first one says
    assert cross_correlation_loss(twice, twice, 0.5).item() == pytest.approx(0.5, rel=1e-4)


def test_the_method_compares_the_projections_of_its_two_views(tiny):
    method = build_method(tiny("method=barlow_twins", "method.redundancy=0.5"), 1).double().train()
    views = tuple(features(6, 1, 8, 8, seed=seed) for seed in (1, 2))
    loss = method.loss(Batch(torch.arange(6), views, (None, None), torch.Generator())).losses
    projections = [method.projector(method.backbone(view)).tolist() for view in views]
    assert loss["correlation"].item() == pytest.approx(slow_loss(*projections, 0.5), rel=1e-6)


def test_the_published_parts(tiny):
    method = build_method(tiny("method=barlow_twins"), 1)
    widths = [layer.out_features for layer in method.projector if hasattr(layer, "out_features")]
    assert widths == [16, 16, 16] and method.settings.redundancy == 0.005
    assert [(r.blur_p, r.solarize_p) for r in method.recipes()] == [(1.0, 0.0), (0.1, 0.2)]
    with pytest.raises(ConfigError, match=r"method\.redundancy=-1"):
        build_method(tiny("method=barlow_twins", "method.redundancy=-1"), 1)
