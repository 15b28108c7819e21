"""The three parts of VICReg, against loops."""

import math

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import build_method
from orchestra_flwr.methods.vicreg import covariance_loss, variance_loss


def features(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def covariance(rows, i, j):
    """Of two features, by B - 1."""
    means = [sum(row[k] for row in rows) / len(rows) for k in (i, j)]
    return sum((row[i] - means[0]) * (row[j] - means[1]) for row in rows) / (len(rows) - 1)


def slow_variance(rows):
    short = [max(0.0, 1 - math.sqrt(covariance(rows, k, k) + 1e-4)) for k in range(len(rows[0]))]
    return sum(short) / len(short)


def slow_covariance(rows):
    dim = len(rows[0])
    pairs = [(i, j) for i in range(dim) for j in range(dim) if i != j]
    return sum(covariance(rows, i, j) ** 2 for i, j in pairs) / dim


@pytest.mark.parametrize(("count", "dim"), [(2, 3), (5, 4), (9, 2)])
@pytest.mark.parametrize("scale", [0.1, 0.9])
def test_agrees_with_the_formulas(count, dim, scale):
    rows = scale * features(count, dim, seed=1) + 2
    loss, expected = variance_loss(rows), slow_variance(rows.tolist())
    assert loss.dtype == torch.float64 and loss.item() == pytest.approx(expected, rel=1e-10)
    assert covariance_loss(rows).item() == pytest.approx(slow_covariance(rows.tolist()), rel=1e-10)


@pytest.mark.parametrize("count", [2, 7])
def test_the_parts_have_the_weights_of_equation_6_and_the_factors_of_the_authors_code(tiny, count):
    weights = ("method.invariance=25", "method.variance=24", "method.covariance=3")
    method = build_method(tiny("method=vicreg", *weights), 1)
    one, other = 0.5 * features(count, 4, seed=1), 0.5 * features(count, 4, seed=2)
    squares = [(a - b) ** 2 for a, b in zip(one.flatten(), other.flatten(), strict=True)]
    one_rows, other_rows = one.tolist(), other.tolist()
    expected = {
        "invariance": 25 * float(sum(squares)) / len(squares),
        "variance": 24 * (slow_variance(one_rows) + slow_variance(other_rows)) / 2,
        "covariance": 3 * (slow_covariance(one_rows) + slow_covariance(other_rows)),
    }
    losses = {name: loss.item() for name, loss in method.compare(one, other).items()}
    assert losses == pytest.approx(expected, rel=1e-10)


def test_collapsed_features_have_the_largest_variance_loss_and_a_finite_gradient():
    rows = torch.ones(4, 3, requires_grad=True)
    loss = variance_loss(rows)
    loss.backward()
    assert loss.item() == pytest.approx(0.99) and torch.isfinite(rows.grad).all()
    assert covariance_loss(rows).item() == 0


def test_the_published_parts(tiny):
    method = build_method(tiny("method=vicreg"), 1)
    widths = [layer.out_features for layer in method.projector if hasattr(layer, "out_features")]
    assert widths == [16, 16, 16]
    assert tuple(method.settings.model_dump().values()) == (25.0, 25.0, 1.0)
    with pytest.raises(ConfigError, match=r"method\.variance=-1"):
        build_method(tiny("method=vicreg", "method.variance=-1"), 1)
