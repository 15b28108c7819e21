import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orchestra_flwr.models import Backbone
from orchestra_flwr.models.heads import plain_head
from orchestra_flwr.models.precision import network_pass, passes_in


class Body(Backbone):
    """A backbone as any plug-in writes one: nothing in it speaks of precision."""

    def __init__(self):
        super().__init__(None, None, 3)
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))

    def forward(self, x):
        return self.layers(x).flatten(1)


class Model(nn.Module):
    """A backbone and two heads, of whose outputs a loss makes a product."""

    def __init__(self):
        super().__init__()
        self.body = Body()
        self.heads = nn.ModuleList([plain_head(8 * 36, 5, 4), plain_head(8 * 36, 5, 4)])

    def loss(self, images):
        features = self.body(images)
        ones, others = (head(features) for head in self.heads)
        return (ones @ others.T).exp().sum().log()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def images():
    return torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def dtypes_inside(model, images):
    """What convolution, normalisation and linear layers put out; networks; and the loss."""
    seen = []
    layers = (*model.body.layers, *(head[2] for head in model.heads), model.body, *model.heads)
    hooks = [m.register_forward_hook(lambda *call: seen.append(call[-1].dtype)) for m in layers]
    loss = model.loss(images)
    for hook in hooks:
        hook.remove()
    counts = {dtype: seen.count(dtype) for dtype in (torch.bfloat16, torch.float32)}
    return counts, loss.dtype


def test_networks_compute_in_bfloat16_and_the_loss_in_float32(model, images):
    with passes_in("bfloat16", "cpu"):
        counts, loss = dtypes_inside(model, images)
    assert counts == {torch.bfloat16: 4, torch.float32: 3} and loss == torch.float32


def test_float32_changes_no_bit(model, images):
    expected = model.loss(images)
    with passes_in("float32", "cpu"):
        assert dtypes_inside(model, images)[0] == {torch.bfloat16: 0, torch.float32: 7}
        assert torch.equal(model.loss(images), expected)


def test_a_loss_in_bfloat16_is_that_of_its_networks_outputs(model, images):
    """Nothing but networks rounds."""
    with passes_in("bfloat16", "cpu"):
        loss = model.loss(images)
        features = model.body(images)
        ones, others = (head(features) for head in model.heads)
    assert torch.equal(loss, (ones @ others.T).exp().sum().log())


def test_weights_gradients_and_statistics_stay_float32(model, images):
    with passes_in("bfloat16", "cpu"):
        loss = model.loss(images)
    loss.backward()
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    assert {t.dtype for t in tensors if t.is_floating_point()} == {torch.float32}


def test_gradients_are_close_to_those_in_float32(model, images):
    exact = copy.deepcopy(model)
    exact.loss(images).backward()
    with passes_in("bfloat16", "cpu"):
        loss = model.loss(images)
    loss.backward()
    for a, b in zip(model.parameters(), exact.parameters(), strict=True):
        assert (a.grad - b.grad).norm() < 0.05 * b.grad.norm() + 1e-6


class Line(nn.Module):
    """A weight, and a network around another one."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 1))

    @network_pass
    def forward(self, x):
        return F.linear(x, self.weight)

    @network_pass
    def twice(self, x):
        once = self(x)
        assert once.dtype == self.inside
        return self(once)


def test_gradients_of_several_passes_are_summed_in_float32():
    """256 + 1 is 256 in bfloat16, which has 8 binary digits."""
    line = Line()
    with passes_in("bfloat16", "cpu"):
        total = sum(line(torch.full((1, 1), x)) for x in (256.0, 1.0))
    total.backward()
    assert line.weight.grad.item() == 257


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_network_within_a_network_is_a_part_of_it(precision):
    line = Line()
    line.inside = getattr(torch, precision)
    with passes_in(precision, "cpu"):
        assert line.twice(torch.ones(1, 1)).dtype == torch.float32


def test_outside_of_the_block_everything_is_as_it_was(model, images):
    expected = model.loss(images)
    with pytest.raises(KeyError), passes_in("bfloat16", "cpu"):
        model.loss(images)
        assert not torch.is_autocast_enabled("cpu")  # nor between networks
        raise KeyError
    model.loss(images)
    assert torch.equal(model.loss(images), expected)


def test_a_network_that_fails_leaves_the_precision_as_it_was(model, images):
    with passes_in("bfloat16", "cpu"):
        with pytest.raises(RuntimeError):
            model.body(images[:, :1])
        assert dtypes_inside(model, images)[0][torch.bfloat16] == 4


@pytest.mark.filterwarnings("ignore:TF32")
def test_works_where_the_processor_has_no_bfloat16_kernels(model, images):
    with torch.backends.mkldnn.flags(enabled=False):
        with passes_in("bfloat16", "cpu"):
            loss = model.loss(images)
        loss.backward()
    assert torch.isfinite(model.body.layers[0].weight.grad).all()
