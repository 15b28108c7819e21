"""Any network of timm as a backbone."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from orchestra_flwr.config import ConfigError, ModelConfig, config_to_yaml, load_config
from orchestra_flwr.models import Encoder, EncoderSpec, build_backbone, load_encoder, save_encoder
from orchestra_flwr.training import build_learner, starting_learner

SMALL = ("model=timm", "model.timm=mobilenetv3_small_050")
# Of weights that nobody has trained: their norms have no statistics that could stay.
RANDOM = (*SMALL, "model.batch_norm=averaged", "data.image_size=8")


def build(name, channels=3, size=32, **options):
    model = {"name": "timm", "timm": name, "image_size": size, **options}
    torch.manual_seed(0)
    return build_backbone(ModelConfig.model_validate(model), channels)


@pytest.fixture
def timm():
    return pytest.importorskip("timm", reason="needs the extra timm")


@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [("mobilenetv3_small_050", 1, 8), ("resnet10t", 3, 40), ("vit_tiny_patch16_224", 3, 48)],
)
def test_features_are_those_of_the_model_without_its_classifier(timm, name, channels, size):
    backbone = build(name, channels, size).eval()
    images = torch.randn(2, channels, size, size)
    extra = {"img_size": size} if name.startswith("vit") else {}
    whole = timm.create_model(name, in_chans=channels, num_classes=5, **extra).eval()
    state = {**whole.state_dict(), **backbone.model.state_dict()}
    whole.load_state_dict(state)
    features = backbone(images)
    assert features.shape == (2, backbone.dim)
    expected = whole.forward_head(whole.forward_features(images), pre_logits=True)
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=1e-4)


def test_a_transformer_takes_smaller_views_and_sees_whole_images_as_timm_has_them(timm):
    name = "vit_tiny_patch16_224"
    backbone = build(name, 3, 48).eval()
    images = torch.randn(2, 3, 48, 48)
    fixed = timm.create_model(name, num_classes=0, img_size=48).eval()
    fixed.load_state_dict(backbone.model.state_dict())
    torch.testing.assert_close(backbone(images), fixed(images), atol=1e-5, rtol=1e-4)
    assert backbone(images[..., :32, :32]).shape == (2, backbone.dim)
    with pytest.raises(AssertionError, match="48"):
        fixed(images[..., :32, :32])


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "ghostnet_050"])
def test_the_same_seed_gives_the_same_bits_for_there_is_no_dropout(timm, name):
    """Dropout is a module, or a function that a network calls with a rate of its own."""
    backbone = build(name, 3, 32).train()
    for module in backbone.modules():
        assert getattr(module, "p", 0) == 0 and not getattr(module, "drop_prob", 0)
    images, state = torch.randn(2, 3, 32, 32), torch.get_rng_state()
    assert torch.equal(backbone(images), backbone(images))
    assert torch.equal(torch.get_rng_state(), state)


def test_positions_do_not_change_at_random(timm, monkeypatch):
    """As those of Sapiens2 in training, here a small one."""
    if not timm.is_model("vit_base_patch16_sapiens2"):
        pytest.skip("needs a newer timm")
    small = {"depth": 1, "embed_dim": 48, "num_heads": 3, "num_kv_heads": 3}
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda *name, **o: create(*name, **o, **small))
    backbone = build("vit_base_patch16_sapiens2", 3, 32).train()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(backbone(images), backbone(images))


@pytest.mark.parametrize(
    ("name", "blocks", "last"),
    [
        ("poolformer_s12", 5, ("model.stages.3.", "model.head.norm.")),
        ("pit_ti_224", 4, ("model.transformers.2.", "model.norm.")),
    ],
)
def test_networks_of_which_timm_knows_no_groups_have_blocks(timm, name, blocks, last):
    backbone = build(name, 3, 64)
    groups = backbone.layer_groups()
    assert len(groups) == blocks
    assert sorted(chain(*groups)) == sorted(backbone.state_dict())
    assert all(any(n.startswith(part) for n in groups[-1]) for part in last)
    assert all(n.startswith(last) for n in groups[-1])


def test_what_has_batch_norm_says_so(timm):
    for name, has in (("mobilenetv3_small_050", True), ("vit_tiny_patch16_224", False)):
        model = {"name": "timm", "timm": name, "image_size": 32}
        chosen = ModelConfig.model_validate(model)
        assert chosen.plugin.has_batch_norm(chosen) is has


WEIGHTS = ("model=timm", "model.weights=x.safetensors")  # which nobody reads here
OF_RESNET = ("model.timm=test_resnet",)  # of images of 160 pixels


@pytest.mark.parametrize(
    ("overrides", "size", "by"),
    [
        (("data=cifar10", *WEIGHTS, "model.timm=mobilenetv3_small_050"), 224, "imagenet"),
        (("data=cifar10", *WEIGHTS, *OF_RESNET), 160, "half"),
        (("data=cifar10", *WEIGHTS, "model.timm=vit_tiny_patch16_384"), 384, "half"),
        (("data=cifar10", *WEIGHTS, "model.timm=seresnextaa201d_32x8d"), 384, "imagenet"),
        (("data=image_folder", *WEIGHTS, "model.timm=swin_tiny_patch4_window7_224"), 224,
         "imagenet"),
        (("data=digits", *WEIGHTS, "model.timm=mobilenetv3_small_050"), 224, "half"),
        (("data=cifar10", *WEIGHTS, *OF_RESNET, "data.image_size=64"), 64, "half"),
        (("data=cifar10", *WEIGHTS, *OF_RESNET, "data={image_size:64}"), 64, "half"),
        (("data=cifar10", *WEIGHTS, *OF_RESNET, "data.normalise=cifar"), 160, "cifar"),
        (("data=cifar10", "preset=dec_ssl", *WEIGHTS, *OF_RESNET), 160, "cifar"),
        (("data=cifar10", "model=timm", "model.timm=mobilenetv3_small_050"), 32, "half"),
    ],
)  # fmt: skip
def test_images_are_as_pretrained_weights_expect_them_unless_keys_are_set(
    timm, overrides, size, by
):
    config = load_config(overrides)
    assert (config.data.image_size, config.data.normalise) == (size, by)
    assert config.model.settings.image_size == size


def test_images_are_never_larger_than_those_of_any_run(timm):
    config = load_config(["data=cifar10", *WEIGHTS, "model.timm=vit_small_patch14_reg4_dinov2"])
    assert config.data.image_size == 512  # its own are of 518


def test_a_resumed_run_keeps_the_size_of_its_images(timm, tmp_path):
    """Also where the command that began it is repeated."""
    given = ["data=cifar10", *WEIGHTS, *OF_RESNET]
    values = load_config([*given, f"run_dir={tmp_path}"]).model_dump()
    for size in (160, 32):  # as runs of earlier versions have it
        values["data"]["image_size"] = values["model"]["image_size"] = size
        (tmp_path / "config.yaml").write_text(config_to_yaml(values))
        for repeated in ([], given):
            assert load_config([f"resume={tmp_path}", *repeated]).data.image_size == size


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("model.timm=mobilnetv3_small_050",), r"no model of this name: did you mean mobilenetv3"),
        (("model.timm=mobilenetv3_small_050.x",), r"has no such tag, but mobilenetv3_small_050\.l"),
        (("model.image_size=9",), r"^model\.image_size=9: must be data\.image_size=8$"),
        (("model.weights=pretrained", "merging=fedbn"), r"must not be given with merging=fedbn"),
        (("model.weights=x.pth",), r"must be null, pretrained or a file \*\.safetensors$"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line(timm, tiny, overrides, says):
    with pytest.raises(ConfigError, match=says) as caught:
        tiny(*SMALL, *overrides)
    assert "\n" not in str(caught.value)


def test_images_that_the_model_cannot_take_are_refused_in_one_line(timm):
    with pytest.raises(ConfigError, match=r"^model\.timm=vit_tiny.* 8 x 8 pixels") as caught:
        build("vit_tiny_patch16_224", 3, 8)
    assert "\n" not in str(caught.value)


def test_without_timm_one_line_says_what_to_install(tiny, monkeypatch):
    monkeypatch.setattr("orchestra_flwr.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'orchestra-flwr\[timm\]'$") as caught:
        tiny(*SMALL, "seed=7")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["simclr", "byol"])
def test_the_server_begins_with_the_weights_of_a_file_and_clients_need_none(
    timm, tiny, tmp_path, method
):
    """Those of three channels and with a classifier fit one channel without."""
    file = tmp_path / "weights.safetensors"
    trained = timm.create_model("mobilenetv3_small_050", num_classes=10)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(1.5)
    save_file(trained.state_dict(), file)
    config = tiny(*RANDOM, f"method={method}", f"model.weights={file}")
    first = starting_learner(config, 1).method
    expected = trained.state_dict()
    for backbone in first.backbones().values():
        state = backbone.model.state_dict()
        assert state["conv_stem.weight"].shape[1] == 1
        torch.testing.assert_close(
            state["conv_stem.weight"][:, 0], expected["conv_stem.weight"].sum(1)
        )
        same = [n for n in state if n != "conv_stem.weight"]
        assert same and all(torch.equal(state[n], expected[n]) for n in same)
    file.unlink()
    plain = build_learner(config, 1).method.backbone.model.state_dict()
    assert not torch.equal(plain["conv_head.weight"], expected["conv_head.weight"])
    with pytest.raises(ConfigError, match=r"weights\.safetensors: no such file$"):
        starting_learner(config, 1)


def test_weights_of_another_model_are_refused_in_one_line(timm, tiny, tmp_path):
    file = tmp_path / "other.safetensors"
    other = timm.create_model("mobilenetv3_small_075").state_dict()
    for weights in (nn.Linear(3, 4).state_dict(), other):
        save_file(weights, file)
        with pytest.raises(ConfigError, match=r"is it of this model\?") as caught:
            starting_learner(tiny(*RANDOM, f"model.weights={file}"), 1)
        assert "\n" not in str(caught.value)


def test_images_that_patches_do_not_divide_are_cut_as_timm_does(timm):
    """DINOv2's patches of 14 pixels divide neither 512, which runs give it, nor 64."""
    name, size = "vit_tiny_patch16_224", 72
    model = ModelConfig.model_validate({"name": "timm", "timm": name, "image_size": size})
    torch.manual_seed(0)
    backbone = build_backbone(model, 3).eval()
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=0, img_size=size).eval()
    images = torch.rand(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), theirs(images))


def test_tables_that_a_network_always_has_are_no_missing_weights(timm, tmp_path):
    """Those of EfficientFormer's attention are in its state, and the same in every file."""
    file, name = tmp_path / "weights.safetensors", "efficientformer_l1"
    torch.manual_seed(9)
    trained = timm.create_model(name).state_dict()
    save_file(trained, file)
    model = {"name": "timm", "timm": name, "weights": str(file), "image_size": 224}
    backbone = build_backbone(ModelConfig.model_validate(model), 3)
    backbone.load_weights()
    for tensor, value in backbone.state_dict().items():
        assert torch.equal(value, trained[tensor.removeprefix("model.")])


@pytest.mark.slow  # a process of its own
def test_offline_the_published_weights_are_refused_in_one_line(tiny, tmp_path, timm):
    """In a process of its own, with an empty cache, whose libraries are told to stay offline."""
    program = (
        "from orchestra_flwr.cli import main; import sys; sys.exit(main(["
        "'engine=inline', 'data=digits', 'model=timm', 'model.timm=mobilenetv3_small_050', "
        f"'model.weights=pretrained', 'run_dir={tmp_path / 'run'}']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={"PATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "HOME": str(tmp_path),
             "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    last = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 2 and not (tmp_path / "run").exists()
    assert last.startswith("error: model.weights=pretrained: cannot be loaded"), result.stderr
    assert "without internet access, name a file" in last


def test_a_saved_encoder_knows_nothing_of_the_weights_it_began_with(timm, tiny, tmp_path):
    """It is read back without them, gives no path away, and a run may begin with it."""
    spec = EncoderSpec(
        model=ModelConfig.model_validate(
            {
                "name": "timm",
                "timm": "mobilenetv3_small_050",
                "weights": "gone.safetensors",
                "width": 8,
            }
        ),
        channels=3,
        image_size=32,
    )
    encoder = Encoder(spec)
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(encoder(images), load_encoder(tmp_path / "encoder.safetensors")(images))
    assert "gone" not in (tmp_path / "encoder.json").read_text()
    of_digits = EncoderSpec(model=spec.model.model_copy(update={"image_size": 8}), channels=1,
                            image_size=8)  # fmt: skip
    save_encoder(tmp_path / "encoder.safetensors", Encoder(of_digits))
    named = json.loads((tmp_path / "encoder.json").read_text())["spec"]["model"]
    assert named["weights"] is None
    learner = starting_learner(tiny(*SMALL, f"init={tmp_path}"), 1)
    expected = load_encoder(tmp_path).backbone.state_dict()
    begun = learner.method.backbone.state_dict()
    assert all(torch.equal(begun[name], tensor) for name, tensor in expected.items())
