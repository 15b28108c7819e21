import math

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import Batch, Step, build_method
from orchestra_flwr.methods.simclr import info_nce_loss, nt_xent_loss


def features(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def slow_nt_xent(first, second, temperature):
    """Equation 1, pair by pair: both orders of every positive pair, over 2 B."""
    count = len(first)
    views = [*first, *second]
    total = 0.0
    for i in range(2 * count):
        positive = (i + count) % (2 * count)
        others = sum(
            math.exp(cosine(views[i], views[k]) / temperature) for k in range(2 * count) if k != i
        )
        total -= math.log(math.exp(cosine(views[i], views[positive]) / temperature) / others)
    return total / (2 * count)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_agrees_with_the_formula(temperature, count):
    first, second = features(count, 7, seed=1), features(count, 7, seed=2)
    expected = slow_nt_xent(first.tolist(), second.tolist(), temperature)
    assert nt_xent_loss(first, second, temperature).item() == pytest.approx(
        expected, rel=1e-4, abs=1e-6
    )


def test_order_of_images_and_of_views_and_lengths_make_no_difference():
    first, second = features(6, 5, seed=1), features(6, 5, seed=2)
    loss = nt_xent_loss(first, second, 0.1)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    for other in (
        nt_xent_loss(first[order], second[order], 0.1),
        nt_xent_loss(second, first, 0.1),
        nt_xent_loss(3 * first, 0.1 * second, 0.1),
    ):
        torch.testing.assert_close(other, loss)


def test_pairs_that_agree_are_better_than_pairs_that_do_not():
    first = features(6, 5, seed=1)
    assert nt_xent_loss(first, first, 0.1) < nt_xent_loss(first, first.roll(1, 0), 0.1)


def test_both_views_get_gradients():
    first, second = (features(4, 5, seed=s).requires_grad_() for s in (1, 2))
    nt_xent_loss(first, second, 0.1).backward()
    assert first.grad.abs().sum() > 0 and second.grad.abs().sum() > 0


def test_the_published_parts(tiny):
    method = build_method(tiny("method=simclr", "model.projector_dim=24"), 1)
    linear = [m for m in method.projector if isinstance(m, torch.nn.Linear)]
    assert [tuple(m.weight.shape) for m in linear] == [(24, method.backbone.dim), (24, 24)]
    assert [m.bias is not None for m in linear] == [False, True]
    assert method.settings.temperature == 0.1
    one, two = method.recipes()
    assert one == two
    assert (one.crop_scale, one.blur_p, one.solarize_p, one.rotate) == ((0.5, 1.0), 0.5, 0, False)


def test_options_are_checked(tiny):
    with pytest.raises(ConfigError, match="method.temperature=0"):
        build_method(tiny("method=simclr", "method.temperature=0"), 1)
    with pytest.raises(ConfigError, match="method.ema: unknown option of method=simclr"):
        build_method(tiny("method=simclr", "+method.ema=0.9"), 1)


def slow_info_nce(first, second, temperature):
    """Equation 14 of the mutual-information paper and its mirror image: (K, 2K) pairs by hand.

    -(1/K) sum_k log(exp f(z1_k, z2_k) / ((1/K) sum_j exp f(z1_j, z2_k))), which log K more makes a
    cross-entropy.
    """

    def one_way(candidates, anchors):
        total, count = 0.0, len(anchors)
        for k in range(count):
            scores = [math.exp(cosine(c, anchors[k]) / temperature) for c in candidates]
            total -= math.log(scores[k] / (sum(scores) / count))
        return total / count

    return (one_way(first, second) + one_way(second, first)) / 2


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_infonce_agrees_with_equation_14(temperature, count):
    first, second = features(count, 7, seed=1), features(count, 7, seed=2)
    expected = slow_info_nce(first.tolist(), second.tolist(), temperature) + math.log(count)
    loss = info_nce_loss(first, second, temperature).item()
    assert loss == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_infonce_of_a_constant_critic_is_log_k_and_of_one_image_0():
    alike = torch.ones(6, 5)
    assert info_nce_loss(alike, alike, 0.1).item() == pytest.approx(math.log(6))
    one = features(1, 5, seed=1)
    assert info_nce_loss(one, features(1, 5, seed=2), 0.1).item() == 0
    assert nt_xent_loss(one, one, 0.1).item() == 0


def test_infonce_does_not_depend_on_the_order_of_images_or_views():
    first, second = features(6, 5, seed=1), features(6, 5, seed=2)
    loss = info_nce_loss(first, second, 0.1)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    for other in (
        info_nce_loss(first[order], second[order], 0.1),
        info_nce_loss(second, first, 0.1),
        info_nce_loss(3 * first, 0.1 * second, 0.1),
    ):
        torch.testing.assert_close(other, loss)
    assert not torch.allclose(nt_xent_loss(first, second, 0.1), loss)  # other candidates


@pytest.mark.parametrize("loss", ["infonce", "nt_xent"])
def test_the_bound_of_the_information_is_at_most_log_k(tiny, loss):
    method = build_method(tiny("method=simclr", f"method.loss={loss}"), 1)
    apart = torch.eye(8, 16, requires_grad=True)
    bound = method.information(Step({}, {"projector": (apart, apart)}))
    assert not bound.requires_grad
    assert math.log(8) - 0.01 < bound < math.log(8)
    alike = torch.ones(8, 16)
    nothing = method.information(Step({}, {"projector": (alike, alike)}))
    assert nothing.item() == pytest.approx(0, abs=1e-6)


def test_the_chosen_loss_is_minimised(tiny):
    views = tuple(
        torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(s)) for s in (1, 2)
    )
    batch = Batch(torch.arange(6), views, (None, None), torch.Generator())
    for name, loss in (("nt_xent", nt_xent_loss), ("infonce", info_nce_loss)):
        method = build_method(tiny("method=simclr", f"method.loss={name}"), 1).train()
        step = method.loss(batch)
        expected = loss(*step.features["projector"], 0.1)
        torch.testing.assert_close(step.losses["contrastive"], expected)
        shapes = [tuple(view.shape) for view in step.features["backbone"]]
        assert shapes == 2 * [(6, method.backbone.dim)]
    assert build_method(tiny("method=simclr"), 1).settings.loss == "nt_xent"
