import copy

import pytest
import torch
from torch import nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.models import build_backbone


def test_resnet18_is_the_papers():
    backbone = build_backbone(ModelConfig(name="resnet18"), 3)
    assert sum(t.numel() for t in backbone.state_dict().values()) == 11_178_452
    assert backbone.dim == 512
    assert not any(isinstance(m, nn.MaxPool2d) for m in backbone.modules())
    stem = next(m for m in backbone.modules() if isinstance(m, nn.Conv2d))
    assert (stem.kernel_size, stem.stride) == ((3, 3), (1, 1))


@pytest.mark.parametrize("name", ["resnet18", "convnet"])
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32), (3, 33)])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_features(name, channels, size, norm):
    model = ModelConfig(name=name, norm=norm, width=16)
    backbone = build_backbone(model, channels)
    features = backbone(torch.randn(2, channels, size, size))
    assert features.shape == (2, backbone.dim)
    assert torch.isfinite(features).all()


def test_group_norm_keeps_no_statistics_and_treats_images_alone():
    backbone = build_backbone(ModelConfig(name="resnet18", norm="group", width=16), 3).train()
    assert not list(backbone.buffers())
    images = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(backbone(images)[:1], backbone(images[:1]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["resnet18", "convnet"])
def test_convolutions_never_reorder_what_they_read(name):
    """Channels-last weights make channels-last features, whatever the images' layout."""
    backbone = build_backbone(ModelConfig(name=name, width=16), channels=3)
    layouts = []

    def look(module, inputs, output):
        layouts.append(output.is_contiguous(memory_format=torch.channels_last))

    for module in backbone.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(look)
    backbone(torch.randn(4, 3, 16, 16))
    assert len(layouts) >= 4
    assert all(layouts)


@pytest.mark.parametrize("name", ["resnet18", "convnet"])
def test_channels_last_computes_the_same(name):
    """Features and gradients of plainly laid out weights, within float32's rounding."""
    fast = build_backbone(ModelConfig(name=name, width=16), channels=3)
    plain = copy.deepcopy(fast).to(memory_format=torch.contiguous_format)
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    features = [backbone(images) for backbone in (fast, plain)]
    torch.testing.assert_close(*features, atol=1e-4, rtol=1e-4)
    wanted = torch.randn(features[0].shape, generator=torch.Generator().manual_seed(1))
    for each in features:
        (each * wanted).sum().backward()
    mine, theirs = (
        torch.cat([p.grad.reshape(-1) for p in backbone.parameters()]) for backbone in (fast, plain)
    )
    assert (mine - theirs).norm() <= 1e-3 * theirs.norm()
