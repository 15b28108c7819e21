import pytest
import torch
from torch import nn

from orchestra_flwr.models import mlp


def kinds(head):
    return [type(layer).__name__ for layer in head]


def test_layers_in_order():
    assert kinds(mlp(6, 5, 4, 3)) == [
        *["Linear", "BatchNorm1d", "ReLU"] * 2,
        *["Linear", "BatchNorm1d"],
    ]
    assert kinds(mlp(6, 5, 4, norm=False)) == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert kinds(mlp(6, 4)) == ["Linear", "BatchNorm1d"]
    shapes = [tuple(m.weight.shape) for m in mlp(6, 5, 4, 3) if isinstance(m, nn.Linear)]
    assert shapes == [(5, 6), (4, 5), (3, 4)]


@pytest.mark.parametrize("bias", [True, False])
def test_only_the_last_layer_may_have_a_bias(bias):
    linear = [m for m in mlp(6, 5, 4, 3, bias=bias) if isinstance(m, nn.Linear)]
    assert [m.bias is not None for m in linear] == [False, False, bias]


def test_the_last_norm_centres_and_has_nothing_to_learn():
    head = mlp(32, 64, 16).train()
    features = head(torch.randn(50, 32))
    assert features.shape == (50, 16)
    torch.testing.assert_close(features.mean(0), torch.zeros(16), atol=1e-5, rtol=0)
    norms = [m for m in head if isinstance(m, nn.BatchNorm1d)]
    assert [m.affine for m in norms] == [True, False]
