import copy

import pytest
import torch
from torch import nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.models import build_backbone, recalibrated


def images(n, channels=1, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (n, channels, size, size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


class Pixels(nn.Module):
    """One norm over the pixels of an image; notes the batches that it sees."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, momentum=0.25)
        self.batches = []

    def forward(self, x):
        self.batches.append(len(x))
        return self.norm(x.flatten(1))


def test_statistics_are_the_means_over_batches_by_hand():
    backbone = Pixels().eval()
    nn.init.constant_(backbone.norm.weight, 3)
    nn.init.constant_(backbone.norm.running_mean, 100)
    result = recalibrated(backbone, images(10, size=2), 4, "half")
    assert result.batches == [4, 3, 3] and backbone.batches == []
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    pixels = (images(10, size=2).flatten(1).double() / 255 * 2 - 1)[order].tensor_split(3)
    mean = torch.stack([batch.mean(0) for batch in pixels]).mean(0)
    variance = torch.stack([batch.var(0) for batch in pixels]).mean(0)
    torch.testing.assert_close(result.norm.running_mean.double(), mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(result.norm.running_var.double(), variance, atol=1e-6, rtol=0)
    assert set(result.norm.weight.tolist()) == {3.0}  # weights stay
    assert result.norm.momentum == 0.25 and not result.training
    assert set(backbone.norm.running_mean.tolist()) == {100.0}  # it is a copy


def test_classes_that_come_one_after_the_other_do_not_narrow_the_variance():
    """Ten kinds of images, each of one gray: within a batch of one kind there would be none."""
    grays = torch.arange(0, 250, 25, dtype=torch.uint8).repeat_interleave(50)
    pictures = grays[:, None, None, None].expand(500, 1, 2, 2)
    norm = recalibrated(Pixels(), pictures, 50, "half").norm
    whole = float((grays.double() / 255 * 2 - 1).var())
    assert norm.running_var.tolist() == pytest.approx([whole] * 4, rel=0.05)


@pytest.mark.parametrize("name", ["convnet", "resnet18"])
def test_in_one_batch_evaluation_mode_then_sees_what_training_mode_saw(name):
    """But for the variance's n / (n - 1): with many values in each channel nearly the same."""
    torch.manual_seed(0)
    backbone = build_backbone(ModelConfig(name=name, width=8), 1)
    nn.init.normal_(backbone.get_parameter(next(n for n, _ in backbone.named_parameters())))
    pictures = images(400)
    result = recalibrated(backbone, pictures, 400, "half").eval()
    normalised = pictures.float() / 255 * 2 - 1
    with torch.no_grad():
        expected = copy.deepcopy(backbone).train()(normalised)
        torch.testing.assert_close(result(normalised), expected, rtol=0.02, atol=0.02)
        assert not torch.allclose(backbone.eval()(normalised), expected, rtol=0.1, atol=0.1)


def test_earlier_statistics_leave_no_trace_and_weights_stay():
    backbone = build_backbone(ModelConfig(name="resnet18", width=8), 1)
    other = copy.deepcopy(backbone)
    for module in other.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.num_batches_tracked.fill_(7)
    one, two = (
        recalibrated(each, images(30), 8, "half").state_dict() for each in (backbone, other)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    weights = dict(backbone.named_parameters())
    assert all(torch.equal(one[name], weight) for name, weight in weights.items())


def test_modes_and_momenta_are_as_before():
    backbone = Pixels().train()
    backbone.norm.eval()
    result = recalibrated(backbone, images(5, size=2), 2, "half")
    assert result.training and not result.norm.training
    assert not any(p.grad is not None for p in result.parameters())


def test_without_batch_norm_nothing_changes():
    backbone = build_backbone(ModelConfig(name="resnet18", norm="group", width=8), 1)
    state = recalibrated(backbone, images(6), 3, "half").state_dict()
    assert all(torch.equal(state[name], t) for name, t in backbone.state_dict().items())


@pytest.mark.parametrize(("count", "size", "batches"), [(2, 1, [2]), (5, 1, [3, 2]), (3, 2, [3])])
def test_no_batch_of_one_image(count, size, batches):
    assert recalibrated(Pixels(), images(count, size=2), size, "half").batches == batches


def test_one_image_has_no_variance():
    with pytest.raises(ValueError, match="1 images: .* at least 2"):
        recalibrated(Pixels(), images(1, size=2), 4, "half")
