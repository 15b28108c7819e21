import math

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import build_method
from orchestra_flwr.methods.simclr import nt_xent_loss


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
