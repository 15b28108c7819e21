import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orchestra_flwr.models.precision import in_float32, passes_in


@in_float32
def log_sum_exp(ones, others):
    return (ones @ others.T).exp().sum().log()


class Model(nn.Module):
    """A backbone and two heads, of whose outputs a loss makes a product."""

    def __init__(self):
        super().__init__()
        conv = nn.Conv2d(3, 8, 3, bias=False)
        self.body = nn.Sequential(conv, nn.BatchNorm2d(8), nn.Flatten())
        self.heads = nn.ModuleList([nn.Linear(8 * 36, 4), nn.Linear(8 * 36, 4)])

    def loss(self, images):
        features = self.body(images)
        return log_sum_exp(self.heads[0](features), self.heads[1](features))


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


def test_networks_compute_in_bfloat16_and_the_loss_in_float32(model, images):
    with passes_in("bfloat16", "cpu"):
        assert dtypes_inside(model, images) == [torch.bfloat16] * 4 + [torch.float32]


def test_float32_changes_no_bit(model, images):
    expected = model.loss(images)
    with passes_in("float32", "cpu"):
        assert dtypes_inside(model, images) == [torch.float32] * 5
        assert torch.equal(model.loss(images), expected)


def test_weights_gradients_and_statistics_stay_float32(model, images):
    with passes_in("bfloat16", "cpu"):
        loss = model.loss(images)
    loss.backward()
    tensors = [*model.parameters(), model.body[1].running_mean, model.body[1].running_var]
    tensors += [p.grad for p in model.parameters()]
    assert {t.dtype for t in tensors} == {torch.float32}


def test_gradients_are_close_to_those_in_float32(model, images):
    exact = copy.deepcopy(model)
    exact.loss(images).backward()
    with passes_in("bfloat16", "cpu"):
        loss = model.loss(images)
    loss.backward()
    for a, b in zip(model.parameters(), exact.parameters(), strict=True):
        assert (a.grad - b.grad).norm() < 0.05 * b.grad.norm()


def test_gradients_of_several_passes_are_summed_in_float32():
    """256 + 1 is 256 in bfloat16, which has 8 binary digits."""
    weight = nn.Parameter(torch.ones(1, 1))
    with passes_in("bfloat16", "cpu"):
        total = sum(F.linear(torch.full((1, 1), x), weight).float() for x in (256.0, 1.0))
    total.backward()
    assert weight.grad.item() == 257


def test_outside_of_the_block_everything_is_as_it_was(model, images):
    expected = model.loss(images)
    with pytest.raises(KeyError), passes_in("bfloat16", "cpu"):
        raise KeyError
    assert not torch.is_autocast_enabled("cpu")
    assert torch.equal(model.loss(images), expected)


def test_a_function_in_float32_computes_as_without_autocast():
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(5, 7, generator=generator).bfloat16().requires_grad_()
    other = torch.randn(5, 7, generator=generator)
    expected = log_sum_exp(low.float(), other)
    with passes_in("bfloat16", "cpu"):
        assert torch.equal(log_sum_exp(low, others=other), expected)
        assert torch.is_autocast_enabled("cpu")  # on again
    expected.backward()
    assert low.grad.dtype == torch.bfloat16 and low.grad.abs().sum() > 0


def test_tensors_in_lists_are_widened_and_nothing_else_is_touched():
    @in_float32
    def what(tensors, number, *, pair):
        return [t.dtype for t in (*tensors, *pair)], number

    low, whole, double = torch.ones(1).half(), torch.ones(1).long(), torch.ones(1).double()
    dtypes, number = what([low, whole], 3, pair=(low, double))
    assert dtypes == [torch.float32, torch.int64, torch.float32, torch.float64]
    assert number == 3 and what.__name__ == "what"


@pytest.mark.filterwarnings("ignore:TF32")
def test_works_where_the_processor_has_no_bfloat16_kernels(model, images):
    with torch.backends.mkldnn.flags(enabled=False):
        with passes_in("bfloat16", "cpu"):
            loss = model.loss(images)
        loss.backward()
    assert torch.isfinite(model.body[0].weight.grad).all()
