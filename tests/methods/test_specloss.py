import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.methods import Batch, build_method
from orchestra_flwr.methods.spectral import spectral_contrastive_loss

spectral_loss = partial(spectral_contrastive_loss, norm="sphere")


def features(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slow_loss(first, second):
    """Pair by pair: equal images in the first mean, different ones in the second."""

    def cosine(a, b):
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))

    count = range(len(first))
    equal = [cosine(first[i], second[i]) for i in count]
    different = [cosine(first[i], second[j]) ** 2 for i in count for j in count if i != j]
    return -2 * sum(equal) / len(equal) + sum(different) / len(different)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_agrees_with_the_formula(count):
    first, second = features(count, 5, seed=1), features(count, 5, seed=2)
    expected = slow_loss(first.tolist(), second.tolist())
    assert spectral_loss(first, second).item() == pytest.approx(expected, rel=1e-5)


def test_order_of_images_and_of_views_and_lengths_make_no_difference():
    first, second = features(6, 5, seed=1), features(6, 5, seed=2)
    loss = spectral_loss(first, second)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    torch.testing.assert_close(spectral_loss(first[order], second[order]), loss)
    torch.testing.assert_close(spectral_loss(second, first), loss)
    torch.testing.assert_close(spectral_loss(7 * first, second / 7), loss)


def test_least_for_orthogonal_images_whose_views_agree():
    assert spectral_loss(torch.eye(4), torch.eye(4)).item() == pytest.approx(-2)
    collapsed = torch.ones(4, 4)
    assert spectral_loss(collapsed, collapsed).item() == pytest.approx(-1)


def test_a_single_image_is_only_drawn_to_its_other_view():
    first, second = features(1, 5, seed=1), features(1, 5, seed=2).requires_grad_()
    loss = spectral_loss(first, second)
    assert loss.item() == pytest.approx(-2 * F.cosine_similarity(first, second).item())
    loss.backward()
    assert torch.isfinite(second.grad).all()


def test_both_views_get_gradients():
    first, second = (features(4, 5, seed=s).requires_grad_() for s in (1, 2))
    spectral_loss(first, second).backward()
    assert first.grad.abs().sum() > 0 and second.grad.abs().sum() > 0


def test_the_published_parts(tiny):
    method = build_method(tiny("method=specloss", "method.outputs=7"), 1).train()
    assert tuple(method.clusters.weight.shape) == (7, 16) and method.clusters.bias is not None
    plain, varied = method.recipes()
    assert (plain.crop_scale, plain.jitter_p, plain.gray_p, plain.blur_p) == ((0.08, 1.0), 0, 0, 0)
    assert (varied.crop_scale, varied.jitter) == ((0.2, 1.0), (0.4, 0.4, 0.4, 0.1))
    views = tuple(features(6, 1, 8, 8, seed=s) for s in (1, 2))
    step = method.loss(Batch(torch.arange(6), views, (None, None), torch.Generator()))
    outputs = [method.clusters(method.projector(method.backbone(v))).tolist() for v in views]
    assert step.losses["spectral"].item() == pytest.approx(slow_loss(*outputs), rel=1e-4)
