from functools import partial

import pytest
import torch
from torch import nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.models import build_head
from orchestra_flwr.models.heads import mlp, plain_head
from orchestra_flwr.models.norm_layers import head_norm

BATCH, GROUP = (partial(head_norm, name) for name in ("batch", "group"))


def kinds(head):
    return [type(layer).__name__ for layer in head]


def test_layers_in_order():
    assert kinds(mlp(6, 5, 4, 3, norm=BATCH)) == [
        *["Linear", "BatchNorm1d", "ReLU"] * 2,
        *["Linear", "BatchNorm1d"],
    ]
    assert kinds(mlp(6, 5, 4, norm=BATCH, last_norm=False)) == [
        "Linear",
        "BatchNorm1d",
        "ReLU",
        "Linear",
    ]
    assert kinds(mlp(6, 4, norm=BATCH)) == ["Linear", "BatchNorm1d"]
    shapes = [
        tuple(m.weight.shape) for m in mlp(6, 5, 4, 3, norm=BATCH) if isinstance(m, nn.Linear)
    ]
    assert shapes == [(5, 6), (4, 5), (3, 4)]


@pytest.mark.parametrize("bias", [True, False])
def test_only_the_last_layer_may_have_a_bias(bias):
    linear = [m for m in mlp(6, 5, 4, 3, bias=bias, norm=BATCH) if isinstance(m, nn.Linear)]
    assert [m.bias is not None for m in linear] == [False, False, bias]


def test_the_last_norm_centres_and_has_nothing_to_learn():
    head = mlp(32, 64, 16, norm=BATCH).train()
    features = head(torch.randn(50, 32))
    assert features.shape == (50, 16)
    torch.testing.assert_close(features.mean(0), torch.zeros(16), atol=1e-5, rtol=0)
    norms = [m for m in head if isinstance(m, nn.BatchNorm1d)]
    assert [m.affine for m in norms] == [True, False]


def test_groupnorm_looks_at_one_image_alone():
    """`model.norm=group` holds for heads as well: no feature depends on the rest of a batch."""
    head = mlp(32, 64, 16, norm=GROUP)
    assert kinds(head) == ["Linear", "GroupNorm", "ReLU", "Linear", "GroupNorm"]
    images = torch.randn(10, 32)
    torch.testing.assert_close(head(images)[:3], head(images[:3]))
    assert list(head.buffers()) == []


def test_groups_of_eight_or_one_where_eight_does_not_divide():
    sizes = [m.num_groups for m in mlp(6, 24, 12, norm=GROUP) if isinstance(m, nn.GroupNorm)]
    assert sizes == [3, 1]


def test_only_a_head_that_is_read_in_evaluation_mode_keeps_statistics():
    without, with_them = (mlp(32, 16, norm=partial(BATCH, statistics=s)) for s in (False, True))
    assert list(without.buffers()) == []
    images = torch.randn(10, 32)
    torch.testing.assert_close(without.eval()(images), without.train()(images))
    names = {name for name, _ in with_them.named_buffers()}
    assert {"1.running_mean", "1.running_var"} <= names


def test_groups_are_as_many_as_asked_for_where_they_divide_the_features():
    head = mlp(6, 24, 10, norm=partial(GROUP, groups=4))
    assert [m.num_groups for m in head if isinstance(m, nn.GroupNorm)] == [4, 1]


def test_the_plain_head_is_the_papers():
    """512 -> 2048 -> 128 with biases: 1,312,896 parameters."""
    head = plain_head(512, 2048, 128)
    assert kinds(head) == ["Linear", "ReLU", "Linear"]
    assert sum(p.numel() for p in head.parameters()) == 1_312_896
    assert kinds(plain_head(6, 16, 4, norm=GROUP)) == ["Linear", "GroupNorm", "ReLU", "Linear"]


@pytest.mark.parametrize("projector", ["orchestra", "plain"])
@pytest.mark.parametrize(("hidden", "widths"), [(None, [24, 24]), (40, [40, 40])])
def test_the_configuration_chooses_the_head_and_its_width(projector, hidden, widths):
    model = ModelConfig(
        name="convnet", projector=projector, projector_hidden=hidden, projector_dim=8
    )
    linear = [m for m in build_head(model, 12, 24, 24) if isinstance(m, nn.Linear)]
    expected = [*widths, 8] if projector == "orchestra" else [widths[0], 8]
    assert [m.out_features for m in linear] == expected
    assert [m.bias is not None for m in linear] == [projector == "plain"] * len(linear)


@pytest.mark.parametrize(("plain_norm", "count"), [(False, 0), (True, 1)])
def test_a_plain_head_has_a_norm_only_where_the_method_needs_one(plain_norm, count):
    model = ModelConfig(name="convnet", projector="plain", norm="group", groups=2)
    head = build_head(model, 12, 24, plain_norm=plain_norm)
    assert [m.num_groups for m in head if isinstance(m, nn.GroupNorm)] == [2] * count


def test_dec_ssls_head_has_a_norm_between_two_plain_layers():
    """512-512-512 with both biases: 526,336 parameters (Dec-SSL's projector of SimCLR)."""
    head = build_head(ModelConfig(name="resnet18", projector="plain_norm"), 512, 512)
    assert kinds(head) == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert sum(p.numel() for p in head.parameters()) == 2 * (512 * 512 + 512) + 2 * 512
    assert list(head.buffers()) == []  # nothing reads statistics
