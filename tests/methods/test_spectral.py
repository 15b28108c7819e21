"""The spectral contrastive loss of HaoChen et al., against loops and identities."""

import math

import pytest
import torch

from orchestra_flwr.methods import Batch, build_method
from orchestra_flwr.methods.spectral import spectral_contrastive_loss

NORMS = ["sphere", "ball", "none"]


def features(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slow_loss(first, second, norm):
    """Pair by pair: -2 of the equal pairs' mean, plus the mean square of all others."""

    def scaled(x):
        length = math.hypot(*x)
        factor = {"sphere": length, "ball": max(1, length), "none": 1}[norm]
        return [value / factor for value in x]

    first, second = [scaled(x) for x in first], [scaled(x) for x in second]
    count = len(first)
    products = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in second] for x in first]
    equal = sum(products[k][k] for k in range(count)) / count
    others = [products[j][k] ** 2 for j in range(count) for k in range(count) if j != k]
    return -2 * equal + (sum(others) / len(others) if others else 0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_agrees_with_the_formula(norm, count, scale):
    first, second = scale * features(count, 4, seed=1), scale * features(count, 4, seed=2)
    expected = slow_loss(first.tolist(), second.tolist(), norm)
    loss = spectral_contrastive_loss(first, second, norm).item()
    assert loss == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_outputs_that_differ_between_images_give_minus_2_and_constant_ones_minus_1(norm):
    apart, alike = torch.eye(5, 8), torch.eye(1, 8).repeat(5, 1)
    assert spectral_contrastive_loss(apart, apart, norm).item() == pytest.approx(-2)
    assert spectral_contrastive_loss(alike, alike, norm).item() == pytest.approx(-2 + 1)


def test_it_is_the_error_of_the_similarity_matrix_up_to_a_constant():
    """|I - F G' / B|^2 = B - 2 E<x, x+> + E<x, y>^2, with all B^2 pairs in the last mean.

    A positive pair has probability 1 / B, as has each view: the normalised adjacency matrix is I.
    The loss leaves the B equal pairs out of the mean.
    """
    count = 6
    first, second = features(count, 4, seed=1), features(count, 4, seed=2)
    products = first @ second.T
    error = (torch.eye(count) - products / count).square().sum()
    equal = products.diagonal()
    all_pairs = error - count + 2 * equal.mean()
    different = (all_pairs - equal.square().sum() / count**2) * count / (count - 1)
    loss = spectral_contrastive_loss(first, second)
    torch.testing.assert_close(loss, -2 * equal.mean() + different)


def test_inside_the_ball_nothing_changes_and_outside_the_direction_counts():
    inside = 0.2 * torch.nn.functional.normalize(features(5, 4, seed=1), dim=1)
    loss = spectral_contrastive_loss(inside, inside, "ball")
    torch.testing.assert_close(loss, spectral_contrastive_loss(inside, inside, "none"))
    outside = 50 * inside
    loss = spectral_contrastive_loss(outside, outside, "ball")
    torch.testing.assert_close(loss, spectral_contrastive_loss(inside, inside, "sphere"))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("count", [1, 2])
def test_gradients_are_finite_for_few_images(norm, count):
    first, second = (features(count, 4, seed=s).requires_grad_() for s in (1, 2))
    spectral_contrastive_loss(first, second, norm).backward()
    for tensor in (first, second):
        assert torch.isfinite(tensor.grad).all()
        assert tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("norm", NORMS)
def test_the_method_is_the_loss_of_its_projections(tiny, norm):
    method = build_method(tiny("method=spectral", f"method.norm={norm}"), 1).train()
    views = tuple(
        torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(s)) for s in (1, 2)
    )
    step = method.loss(Batch(torch.arange(6), views, (None, None), torch.Generator()))
    expected = slow_loss(*(p.tolist() for p in step.features["projector"]), norm)
    assert step.losses["spectral"].item() == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert build_method(tiny("method=spectral"), 1).settings.norm == "ball"
    one, two = method.recipes()
    assert one == two
