"""What holds for every backbone, and a backbone of a user's own."""

import copy
import hashlib

import pytest
import torch
from torch import nn

from orchestra_flwr.config import ConfigError, ModelConfig
from orchestra_flwr.models import build_backbone


def test_resnet18_is_the_papers():
    backbone = build_backbone(ModelConfig(name="resnet18"), 3)
    assert sum(t.numel() for t in backbone.state_dict().values()) == 11_178_452
    assert backbone.dim == 512
    assert not any(isinstance(m, nn.MaxPool2d) for m in backbone.modules())
    stem = next(m for m in backbone.modules() if isinstance(m, nn.Conv2d))
    assert (stem.kernel_size, stem.stride) == ((3, 3), (1, 1))


def test_vit_tiny_is_the_published_one():
    """As Dec-SSL counts it; nothing is stored but parameters."""
    backbone = build_backbone(ModelConfig(name="vit_tiny", width=192), 3)
    assert sum(p.numel() for p in backbone.parameters()) == 5_383_680
    assert sum(t.numel() for t in backbone.state_dict().values()) == 5_383_680
    assert backbone.eval()(torch.randn(2, 3, 32, 32)).shape == (2, backbone.dim) == (2, 192)


def test_a_transformers_feature_does_not_depend_on_images_beside_it():
    backbone = build_backbone(ModelConfig(name="vit_tiny", width=24, depth=2, image_size=8), 1)
    images = torch.randn(4, 1, 8, 8)
    torch.testing.assert_close(backbone(images)[:1], backbone(images[:1]), atol=1e-5, rtol=1e-4)
    swapped = images.clone()
    swapped[:, :, :2, :2], swapped[:, :, -2:, -2:] = images[:, :, -2:, -2:], images[:, :, :2, :2]
    assert (backbone(swapped) - backbone(images)).abs().max() > 1e-4  # places count


@pytest.mark.parametrize(("overrides", "says"), [
    (["model.patch=3"], "model.patch=3: must divide the images' size, 8"),
    (["model.image_size=16"], "model.image_size=16: must be data.image_size=8"),
    (["model.width=16"], "model.heads=3: must divide model.width=16"),
])  # fmt: skip
def test_a_transformer_that_does_not_fit_is_refused(tiny, overrides, says):
    with pytest.raises(ConfigError, match=says):
        tiny("model=vit_tiny", "model.width=24", *overrides)


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
@pytest.mark.parametrize("groups", [1, 4, None])
def test_groups_of_group_norm(name, groups):
    backbone = build_backbone(ModelConfig(name=name, norm="group", width=16, groups=groups), 3)
    norms = [m for m in backbone.modules() if isinstance(m, nn.GroupNorm)]
    assert norms
    assert all(m.num_groups == (groups or m.num_channels // 8) for m in norms)


def test_groups_must_fit():
    with pytest.raises(ValueError, match=r"model\.groups=3: must divide model\.width=16"):
        ModelConfig(name="convnet", norm="group", width=16, groups=3)


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
    for rows in features:
        (rows * wanted).sum().backward()
    mine, theirs = (
        torch.cat([p.grad.reshape(-1) for p in backbone.parameters()]) for backbone in (fast, plain)
    )
    assert (mine - theirs).norm() <= 1e-3 * theirs.norm()


# Those of version 0.1, so that saved encoders and resumed runs stay what they are.
@pytest.mark.parametrize(
    ("name", "names", "weights"),
    [
        ("convnet", "b5f3d610bb7b", 11118.074585229348),
        ("resnet18", "010844ef7983", 199721.28078766217),
    ],
)
def test_names_and_first_weights_stay_as_they_are(name, names, weights):
    torch.manual_seed(5)
    state = build_backbone(ModelConfig(name=name, width=16), 3).state_dict()
    assert hashlib.sha256(",".join(state).encode()).hexdigest()[:12] == names
    sums = [value.double().sum().item() for value in state.values()]
    assert sum(i * total for i, total in enumerate(sums, 1)) == pytest.approx(weights, rel=1e-9)


MINE = """
    from pydantic import Field
    from torch import nn

    from orchestra_flwr.config import Section
    from orchestra_flwr.models import Backbone
    from orchestra_flwr.models.norm_layers import norm_layer


    class Patches(Backbone):
        class Settings(Section):
            patch: int = Field(4, ge=1)

        def __init__(self, settings, model, channels):
            super().__init__(settings, model, channels)
            self.dim = model.width
            patch = self.settings.patch
            self.embed = nn.Conv2d(channels, self.dim, patch, patch)
            self.norm = norm_layer(model.norm, model.groups)(self.dim)

        def forward(self, x):
            return self.norm(self.embed(x)).mean((2, 3))
"""


def _mine(**options):
    model = ModelConfig.model_validate({"name": "patches", "width": 8, **options})
    model.look_in(("my_package",))
    return model


def test_a_backbone_of_a_users_own(user_package):
    user_package({"backbones/patches.py": MINE})
    backbone = build_backbone(_mine(patch=2, norm="group"), 1)
    assert backbone(torch.randn(3, 1, 8, 8)).shape == (3, backbone.dim) == (3, 8)
    assert backbone.embed.weight.shape == (8, 1, 2, 2)
    assert isinstance(backbone.norm, nn.GroupNorm)


def test_its_options_are_checked(user_package):
    user_package({"backbones/patches.py": MINE})
    with pytest.raises(ConfigError, match=r"^model\.patch=0: input should be greater than"):
        build_backbone(_mine(patch=0), 3)
    with pytest.raises(ConfigError) as error:
        build_backbone(_mine(layers=3), 3)
    assert str(error.value) == (
        "model.layers: unknown option of model=patches, which has norm, batch_norm, groups, width, "
        "projector, projector_hidden, projector_dim, patch (model=cct has it)"
    )
    with pytest.raises(ConfigError) as error:
        build_backbone(ModelConfig(name="convnet", path=3), 3)
    assert str(error.value) == (
        "model.path: unknown option of model=convnet, which has norm, batch_norm, groups, width, "
        "projector, projector_hidden, projector_dim"
    )


def test_names_that_do_not_exist_are_refused(user_package):
    user_package({"backbones/patches.py": MINE})
    known = "cct, convnet, resnet18, timm, vit_tiny"
    with pytest.raises(ConfigError, match=f"^model=vit: must be one of {known}$"):
        build_backbone(ModelConfig(name="vit"), 3)
    model = ModelConfig(name="vit")
    model.look_in(("my_package",))
    with pytest.raises(ConfigError, match=f"must be one of {known}, patches$"):
        build_backbone(model, 3)
