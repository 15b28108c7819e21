import copy

import pytest
import torch
from torch import nn

from orchestra_flwr.precision import passes_in


class Model(nn.Module):
    """A part, parts in a container, and a product of the model's own."""

    def __init__(self):
        super().__init__()
        conv = nn.Conv2d(3, 8, 3, bias=False)
        self.body = nn.Sequential(conv, nn.BatchNorm2d(8), nn.Flatten())
        self.heads = nn.ModuleList([nn.Linear(8 * 36, 4), nn.Linear(8 * 36, 4)])

    def loss(self, images):
        features = self.body(images)
        return (self.heads[0](features) @ self.heads[1](features).T).exp().sum().log()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def images():
    return torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def dtypes_inside(model, images):
    """What convolution, normalisation and heads put out, and what the loss is made in."""
    seen = []
    layers = (*model.body[:2], *model.heads)
    hooks = [m.register_forward_hook(lambda *call: seen.append(call[-1].dtype)) for m in layers]
    seen.append(model.loss(images).dtype)
    for hook in hooks:
        hook.remove()
    return seen


def test_parts_compute_in_bfloat16_and_the_model_itself_in_float32(model, images):
    """Heads show float32 because what leaves a part is float32."""
    with passes_in("bfloat16", model, "cpu"):
        assert dtypes_inside(model, images) == [torch.bfloat16] * 2 + [torch.float32] * 3
        features = model.body(images)
        assert torch.equal(features, features.bfloat16().float())  # it was in bfloat16
        product = features @ features.T
        assert not torch.equal(product, product.bfloat16().float())


def test_weights_gradients_and_statistics_stay_float32(model, images):
    with passes_in("bfloat16", model, "cpu"):
        model.loss(images).backward()
    tensors = [*model.parameters(), model.body[1].running_mean, model.body[1].running_var]
    tensors += [p.grad for p in model.parameters()]
    assert {t.dtype for t in tensors} == {torch.float32}


def test_gradients_are_close_to_those_in_float32(model, images):
    exact = copy.deepcopy(model)
    exact.loss(images).backward()
    with passes_in("bfloat16", model, "cpu"):
        model.loss(images).backward()
    for a, b in zip(model.parameters(), exact.parameters(), strict=True):
        assert (a.grad - b.grad).norm() < 0.05 * b.grad.norm()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_outside_of_the_block_the_model_is_as_it_was(model, images, precision):
    expected = model.loss(images)
    with pytest.raises(KeyError), passes_in(precision, model, "cpu"):
        raise KeyError
    assert not torch.is_autocast_enabled("cpu")
    assert "forward" not in vars(model.body)
    assert torch.equal(model.loss(images), expected)


def test_float32_changes_no_bit(model, images):
    expected = model.loss(images)
    with passes_in("float32", model, "cpu"):
        assert dtypes_inside(model, images) == [torch.float32] * 5
        assert torch.equal(model.loss(images), expected)


def test_a_copy_made_inside_passes_through_its_own_weights(model, images):
    with passes_in("bfloat16", model, "cpu"):
        twin = copy.deepcopy(model.body)
        nn.init.zeros_(twin[0].weight)
        assert not twin(images).any() and model.body(images).any()


@pytest.mark.filterwarnings("ignore:TF32")
def test_works_where_the_processor_has_no_bfloat16_kernels(model, images):
    without = torch.backends.mkldnn.flags(enabled=False)
    with without, passes_in("bfloat16", model, "cpu"):
        model.loss(images).backward()
    assert torch.isfinite(model.body[0].weight.grad).all()
