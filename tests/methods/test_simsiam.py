import math

import pytest
import torch

from orchestra_flwr.methods import Batch, build_method
from orchestra_flwr.methods.simsiam import symmetric_negative_cosine


def features(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch(views):
    return Batch(torch.arange(6), views, (None, None), torch.Generator())


def slow_loss(predictions, targets):
    """Equations 1 and 4, image by image."""

    def negative_cosine(p, z):
        dot = sum(a * b for a, b in zip(p, z, strict=True))
        return -dot / math.sqrt(sum(a * a for a in p)) / math.sqrt(sum(b * b for b in z))

    (p1, p2), (z1, z2) = predictions, targets
    losses = [
        negative_cosine(p1[i], z2[i]) / 2 + negative_cosine(p2[i], z1[i]) / 2
        for i in range(len(p1))
    ]
    return sum(losses) / len(losses)


@pytest.fixture
def given():
    return [features(5, 7, seed=s) for s in (1, 2)], [features(5, 7, seed=s) for s in (3, 4)]


def test_agrees_with_the_formula(given):
    predictions, targets = given
    expected = slow_loss([p.tolist() for p in predictions], [z.tolist() for z in targets])
    assert symmetric_negative_cosine(predictions, targets).item() == pytest.approx(expected)


def test_views_may_be_swapped_images_reordered_and_features_scaled(given):
    (p1, p2), (z1, z2) = given
    loss = symmetric_negative_cosine((p1, p2), (z1, z2))
    order = torch.tensor([3, 1, 0, 2, 4])
    torch.testing.assert_close(symmetric_negative_cosine((p2, p1), (z2, z1)), loss)
    torch.testing.assert_close(
        symmetric_negative_cosine((p1[order], p2[order]), (z1[order], z2[order])), loss
    )
    torch.testing.assert_close(symmetric_negative_cosine((9 * p1, p2), (z1, z2 / 9)), loss)


def test_from_minus_one_to_one(given):
    (p1, p2), _ = given
    assert symmetric_negative_cosine((p1, p2), (p2, p1)).item() == pytest.approx(-1)
    assert symmetric_negative_cosine((p1, p2), (-p2, -p1)).item() == pytest.approx(1)


def test_each_view_predicts_the_other_one(given):
    (p1, p2), _ = given
    crossed = symmetric_negative_cosine((p1, p2), (p2, p1))
    assert crossed < symmetric_negative_cosine((p1, p2), (p1, p2)) - 0.1


def test_no_gradient_goes_through_the_targets(given):
    predictions, targets = ([t.requires_grad_() for t in tensors] for tensors in given)
    symmetric_negative_cosine(predictions, targets).backward()
    assert all(t.grad is None for t in targets)
    assert all(p.grad.abs().sum() > 0 for p in predictions)


def test_the_published_parts(tiny):
    method = build_method(tiny("method=simsiam", "model.projector_dim=32"), 1)

    def widths(head):
        return [tuple(m.weight.shape) for m in head if isinstance(m, torch.nn.Linear)]

    assert widths(method.projector) == [(16, method.backbone.dim), (16, 16), (32, 16)]
    assert widths(method.predictor) == [(32, 32), (32, 32)]
    assert isinstance(method.projector[-1], torch.nn.BatchNorm1d)
    assert isinstance(method.predictor[-1], torch.nn.Linear)
    one, two = method.recipes()
    assert one == two


def test_the_predictor_may_be_narrower_than_the_projector(tiny):
    """In Dec-SSL 512 beside 2048: a bottleneck, which the method's authors found better."""
    widths = ("model.projector_hidden=24", "method.predictor_hidden=6")
    method = build_method(tiny("method=simsiam", *widths), 1)
    assert [method.projector[0].out_features, method.predictor[0].out_features] == [24, 6]


def test_the_method_is_the_loss_of_its_parts(tiny):
    method = build_method(tiny("method=simsiam"), 1).train()
    views = tuple(features(6, 1, 8, 8, seed=s) for s in (1, 2))
    loss = method.loss(batch(views)).losses["similarity"]
    z = [method.projector(method.backbone(v)) for v in views]
    p = [method.predictor(projection) for projection in z]
    expected = slow_loss([vectors.tolist() for vectors in p], [vectors.tolist() for vectors in z])
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_with_plain_heads_and_group_norm_it_is_that_of_the_mutual_information_paper(tiny):
    """A GroupNorm before the ReLU of projector and predictor; nothing is left that travels as
    statistics, and an image's features do not depend on its batch."""
    plain = ("model.norm=group", "model.projector=plain", "model.projector_hidden=2048",
             "model.projector_dim=128")  # fmt: skip
    method = build_method(tiny("method=simsiam", *plain), 1).train()
    kinds = ["Linear", "GroupNorm", "ReLU", "Linear"]
    for head, inputs in ((method.projector, method.backbone.dim), (method.predictor, 128)):
        assert [type(layer).__name__ for layer in head] == kinds
        assert [tuple(head[n].weight.shape) for n in (0, 3)] == [(2048, inputs), (128, 2048)]
    assert list(method.buffers()) == []
    views = features(6, 1, 8, 8, seed=1)
    heads = torch.nn.Sequential(method.backbone, method.projector, method.predictor)
    torch.testing.assert_close(heads(views)[:2], heads(views[:2]), atol=1e-5, rtol=1e-4)
