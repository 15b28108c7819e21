import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from orchestra_flwr.models import convolution
from orchestra_flwr.models.convolution import Convolution

# batch, channels in and out, size, stride, padding, height and width: few pixels, many channels
FEW = [
    (4, 8, 64, 3, 1, 1, 4, 4),
    (4, 8, 64, 3, 2, 1, 7, 5),
    (4, 8, 64, 1, 2, 0, 8, 8),
    (1, 3, 9, 3, 1, 0, 5, 5),
    (2, 5, 40, 5, 3, 2, 8, 9),
]


def pair(inputs, outputs, size, stride, padding):
    """One of ours and one of torch's with the same weights."""
    ours = Convolution(inputs, outputs, size, stride, padding)
    plain = nn.Conv2d(inputs, outputs, size, stride, padding, bias=False)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def passed(layer, x, *, precision=torch.float32):
    """What comes out, and the gradients of a sum with fixed weights."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        y = layer(x)
    (y.float() * torch.arange(y.numel()).view_as(y).sin()).sum().backward()
    return y, x.grad, layer.weight.grad


class Operations(TorchDispatchMode):
    """What torch computes in the block."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def is_product(layer, x):
    """Whether nothing is convolved, forward and backward."""
    with Operations() as operations:
        passed(layer, x)
    return not any("convolution" in name for name in operations.names)


@pytest.mark.parametrize("format_", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("shape", FEW)
def test_few_pixels_are_products_and_give_what_torch_gives(shape, onednn, format_, monkeypatch):
    monkeypatch.setattr(convolution, "ONEDNN", onednn and convolution.ONEDNN)
    batch, inputs, outputs, size, stride, padding, height, width = shape
    ours, plain = pair(inputs, outputs, size, stride, padding)
    ours, plain = ours.to(memory_format=format_), plain.to(memory_format=format_)
    x = torch.randn(batch, inputs, height, width).to(memory_format=format_)
    for actual, expected in zip(passed(ours, x), passed(plain, x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert is_product(ours, x) and not is_product(plain, x)


def test_many_pixels_are_torchs_own():
    ours, plain = pair(3, 8, 3, 1, 1)
    x = torch.randn(2, 3, 8, 8)
    for actual, expected in zip(passed(ours, x), passed(plain, x), strict=True):
        assert torch.equal(actual, expected)
    assert not is_product(ours, x)


def test_the_gradient_lies_as_channels_last_weights_do():
    ours = Convolution(8, 64, 3, padding=1).to(memory_format=torch.channels_last)
    assert is_product(ours, torch.randn(1, 8, 4, 4))
    assert ours.weight.grad.stride() == ours.weight.stride()


def test_in_bfloat16_the_weights_and_their_gradients_stay_float32():
    ours, plain = pair(8, 64, 3, 1, 1)
    x = torch.randn(4, 8, 4, 4)
    results = [passed(layer, x, precision=torch.bfloat16) for layer in (ours, plain)]
    assert [tensor.dtype for tensor in results[0]] == [torch.bfloat16, torch.float32, torch.float32]
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0.05, atol=0.1)
    assert is_product(ours, x)


def test_what_needs_no_gradient_gets_none():
    frozen = Convolution(8, 64, 3, padding=1).requires_grad_(False)
    assert not frozen(torch.randn(1, 8, 4, 4)).requires_grad
    x = torch.randn(1, 8, 4, 4, requires_grad=True)
    frozen(x).sum().backward()
    assert x.grad is not None and frozen.weight.grad is None


def test_an_image_keeps_its_bits_wherever_it_lies_in_a_batch():
    """Differentially private clustering relies on it: no image may move another's features."""
    layer = Convolution(128, 256, 3, stride=2, padding=1).to(memory_format=torch.channels_last)
    image, others = torch.randn(1, 128, 4, 4), torch.randn(64, 128, 4, 4)
    assert is_product(layer, others)
    outputs = []
    for place in (0, 1, 17, 63):
        batch = others.roll(place, 0)
        batch[place] = image[0]
        with torch.no_grad():
            outputs.append(layer(batch)[place])
    assert all(torch.equal(output, outputs[0]) for output in outputs)


@pytest.mark.parametrize("options", [{"bias": True}, {"groups": 2}])
def test_what_the_products_do_not_have_is_refused(options):
    with pytest.raises(ValueError, match="no bias and no groups"):
        Convolution(4, 4, 3, **options)
