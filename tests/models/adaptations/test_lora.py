"""Low-rank adapters: what they train, that they merge, and that full rank is full training."""

import copy

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import Role
from orchestra_flwr.models import Encoder, EncoderSpec, build_backbone, load_encoder, save_encoder
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, starting_learner, train_round

pytest.importorskip("peft", reason="needs the extra timm")

LORA = ("method=simclr", "adaptation=lora", "training.lr=0.05")
NETWORKS = {
    "convnet": ("model=convnet",),
    "resnet18": ("model=resnet18",),
    "vit_tiny": ("model=vit_tiny", "model.width=24", "model.depth=2"),
    "test_vit": ("model=timm", "model.timm=test_vit", "data.image_size=32"),
    "test_efficientnet": ("model=timm", "model.timm=test_efficientnet", "data.image_size=32"),
    "skresnet18": ("model=timm", "model.timm=skresnet18", "data.image_size=32"),  # dilated ones
}


@pytest.fixture
def configured(tiny):
    def make(network, *overrides):
        if "model=timm" in NETWORKS[network]:
            pytest.importorskip("timm", reason="needs the extra timm")
        return tiny(*LORA, *NETWORKS[network], *overrides)

    return make


def pictures(config):
    size, generator = config.data.image_size, torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (24, 1, size, size), generator=generator).to(torch.uint8)


def trained(config, learner, round_=1):
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    train_round(learner, pictures(config), config, ClientSeed(0, round_, "0"))
    state = learner.state_dict().items()
    changed = {name for name, tensor in state if not torch.equal(tensor, before[name])}
    return {name.removeprefix("method.") for name in changed}


@pytest.mark.parametrize(
    "network",
    [
        *("convnet", "vit_tiny", "test_efficientnet"),
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("resnet18", "test_vit", "skresnet18")),
    ],
)
def test_adapters_alone_are_trained_and_merge_into_the_plain_network(configured, network, tmp_path):
    config = configured(network)
    learner = build_learner(config, 1)
    backbone, plain = learner.method.backbone, build_backbone(config.model, 1)
    state = backbone.state_dict()
    added = {name for name in state if "lora_" in name}
    rest = {n for n, t in state.items() if t.is_floating_point()} - added
    assert {n.replace("base_layer.", "") for n in rest} == {
        n for n, t in plain.state_dict().items() if t.is_floating_point()
    }
    assert learner.state(Role.FROZEN).keys() == {f"backbone.{name}" for name in rest}
    changed = trained(config, learner)
    changed |= trained(config, learner, 2)
    assert {n for n in changed if n.startswith("backbone.")} == {f"backbone.{n}" for n in added}

    encoder, images = Encoder.of(config, backbone), pictures(config)
    unmerged = Encoder(EncoderSpec.of(config), copy.deepcopy(backbone))(images)
    assert (encoder(images) - unmerged).norm() < 1e-6 * unmerged.norm()
    assert encoder.backbone.state_dict().keys() == plain.state_dict().keys()
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    assert torch.equal(load_encoder(tmp_path)(images), encoder(images))


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("beit_base_patch16_224", {"depth": 1, "embed_dim": 24, "num_heads": 3}),
        ("eva02_tiny_patch14_224", {"depth": 1, "embed_dim": 24, "num_heads": 3, "patch_size": 16}),
        ("swinv2_tiny_window8_256", {"depths": (1,), "embed_dim": 24, "num_heads": (3,)}),
    ],
)
def test_networks_that_add_a_bias_to_queries_themselves(tiny, monkeypatch, name, small):
    timm = pytest.importorskip("timm", reason="needs the extra timm")
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda *name, **o: create(*name, **o, **small))
    config = tiny(*LORA, "model=timm", f"model.timm={name}", "data.image_size=32")
    learner = build_learner(config, 1)
    backbone, images = learner.method.backbone, pictures(config)
    for path, parameter in backbone.named_parameters():  # Swin v2 begins with blocks of weight 0
        parameter.data += "norm" in path and path.endswith("weight")
    begun = Encoder.of(config, backbone)(images)
    plain = Encoder(EncoderSpec.of(config))
    plain.backbone.load_state_dict(Encoder.of(config, backbone).backbone.state_dict())
    assert torch.equal(plain(images), begun)
    assert any("lora_B" in name for name in trained(config, learner))
    unmerged = Encoder(EncoderSpec.of(config), copy.deepcopy(backbone))(images)
    merged = Encoder.of(config, backbone)(images)
    torch.testing.assert_close(merged, unmerged, atol=1e-5, rtol=1e-4)
    assert (merged - begun).norm() > 1e-4 * begun.norm()


def test_a_run_begins_with_the_networks_own_features(configured, tmp_path):
    """Also from pretrained weights, which are those of the plain network."""
    config, images = configured("vit_tiny"), None
    plain = Encoder(EncoderSpec.of(config), build_backbone(config.model, 1))
    save_encoder(tmp_path / "encoder.safetensors", plain)
    images = pictures(config)
    begun = starting_learner(configured("vit_tiny", f"init={tmp_path}"), 1)
    assert torch.equal(Encoder.of(config, begun.method.backbone)(images), plain(images))


@pytest.mark.parametrize("method", ["orchestra", "byol", "orchestra_plus"])
def test_targets_begin_with_the_same_adapters_and_follow_them(tiny, method):
    config = tiny(*LORA, f"method={method}")
    learner = build_learner(config, 1)
    names = [name for name in learner.state(Role.SHARED) if "lora_" in name]
    online = [name for name in names if name.startswith("backbone.")]
    state, before = learner.state_dict(), {n: t.clone() for n, t in learner.state_dict().items()}
    assert online and len(names) == 2 * len(online)
    for name in online:
        assert torch.equal(state[f"method.{name}"], state[f"method.target_{name}"])
    if method != "byol":
        learner.method.global_centroids.normal_(generator=torch.Generator().manual_seed(0))
    trained(config, learner)
    moved = {n for n in online if not torch.equal(state[f"method.target_{n}"],
                                                  before[f"method.target_{n}"])}  # fmt: skip
    assert moved == set(online)


@pytest.mark.parametrize(("network", "layer"), [("vit_tiny", "qkv"), ("convnet", "3")])
def test_full_rank_with_a_fixed_is_full_training_of_the_layer(tiny, configured, network, layer):
    """W + B A with A = 1 moves as W does; B alone is trained in odd rounds."""
    plain = ("optimizer.momentum=0", "optimizer.weight_decay=0", "schedule=constant")
    inputs = {"qkv": 24, "3": 8 * 3 * 3}[layer]
    rank = (f"adaptation.rank={inputs}", f"adaptation.alpha={inputs}", "adaptation.alternate=true")
    config = configured(network, f"adaptation.layers=['{layer}']", *rank, *plain)
    learner = build_learner(config, 1)
    full = tiny(*LORA[:1], "training.lr=0.05", *NETWORKS[network], *plain)
    expected = build_learner(full, 1)
    for name, parameter in expected.method.backbone.named_parameters():
        parameter.requires_grad_(f"{layer}.weight" in name)
    # The norms of the frozen backbone use their statistics.
    paths = {n for n, m in expected.named_modules() if isinstance(m, torch.nn.BatchNorm2d)}
    own = {path.removeprefix("method.backbone.") for path in paths}
    last = {"layers.14"} if network == "convnet" else set()
    expected.method.backbone.freeze_norms(own | last)
    with torch.no_grad():
        for name, parameter in learner.method.backbone.named_parameters():
            if "lora_A" in name:
                parameter.copy_(torch.eye(inputs).view_as(parameter))
    train_round(learner, pictures(config), config, ClientSeed(0, 1, "0"))
    train_round(expected, pictures(full), full, ClientSeed(0, 1, "0"))
    merged = Encoder.of(config, learner.method.backbone).backbone.state_dict()
    wanted = expected.method.backbone.state_dict()
    start = build_learner(full, 1).method.backbone.state_dict()
    moved = [n for n in start if n.endswith(f"{layer}.weight")]
    assert moved and all((wanted[n] - start[n]).abs().max() > 1e-4 for n in moved)
    for name in moved:
        torch.testing.assert_close(merged[name], wanted[name], atol=1e-5, rtol=1e-3)


def test_halves_are_trained_in_turns(configured):
    config = configured("vit_tiny", "adaptation.alternate=true")
    learner = build_learner(config, 1)
    odd, even = trained(config, learner, 1), trained(config, learner, 2)
    halves = [{n for n in odd if "lora_" in n}, {n for n in even if "lora_" in n}]
    assert all(halves)
    assert all("lora_B" in n for n in halves[0]) and all("lora_A" in n for n in halves[1])
    assert {n for n in learner.state(Role.SHARED) if "lora_" in n} == halves[0] | halves[1]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["adaptation.layers=[nonsense]"], r"adaptation.layers=\['nonsense'\]: .*qkv"),
        (["adaptation.alternate=true", "server_optimizer=adam"], "adaptation.alternate=true: must"),
        (["adaptation.alternate=true", "training.optimizer_state=keep"], "alternate=true: must be"),
        (["adaptation.alternate=true", "merging=fedema"], "alternate=true: .*merging=fedema"),
        (["adaptation.alternate=true", "merging=fedu"], "alternate=true: .*merging=fedu"),
        (
            ["adaptation.alternate=true", "exchange=buffered", "clock=virtual"],
            "alternate=true: .*exchange=buffered, .* different halves",
        ),
        (
            ["adaptation.alternate=true", "exchange=cycle", "federation.participation=1"],
            "alternate=true: .*exchange=cycle",
        ),
    ],
)
def test_what_does_not_fit_is_refused(configured, overrides, says):
    with pytest.raises(ConfigError, match=says) as caught:
        build_learner(configured("vit_tiny", *overrides), 1)
    assert "\n" not in str(caught.value)
