"""Detectron2's names, against the scheme that its documentation and model zoo have."""

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from orchestra_flwr import load_encoder
from orchestra_flwr.cli import export_main
from orchestra_flwr.export.detectron2 import detectron2_name
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder

FROZEN = ("weight", "bias", "running_mean", "running_var")


def with_norm(*convolutions):
    """The tensors of convolutions that have a FrozenBatchNorm2d as `norm`."""
    for convolution in convolutions:
        yield f"{convolution}.weight"
        yield from (f"{convolution}.norm.{name}" for name in FROZEN)


def names_of_a_resnet(blocks, convolutions, first_shortcut):
    """All names of `detectron2.modeling.backbone.ResNet` without a classifier."""
    yield from with_norm("stem.conv1")
    for stage, count in enumerate(blocks):
        for block in range(count):
            place = f"res{2 + stage}.{block}"
            yield from with_norm(*(f"{place}.conv{n + 1}" for n in range(convolutions)))
            if block == 0 and stage >= first_shortcut:
                yield from with_norm(f"{place}.shortcut")


def export(run, capsys):
    assert export_main([f"run={run}", "format=detectron2"]) == 0
    assert capsys.readouterr().out.strip() == str(run / "export")
    text = (run / "export" / "detectron2.yaml").read_text()
    return load_file(run / "export" / "detectron2.safetensors"), text


def test_every_tensor_of_resnet18_has_its_name(make_run, capsys):
    run = make_run("resnet18")
    tensors, settings = export(run, capsys)
    assert set(tensors) == set(names_of_a_resnet((2, 2, 2, 2), 2, first_shortcut=1))
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    backbone = load_encoder(run).backbone
    for name, module, field in (
        ("stem.conv1.weight", backbone.stem[0], "weight"),
        ("stem.conv1.norm.running_var", backbone.stem[1], "running_var"),
        ("res2.1.conv2.norm.running_mean", backbone.blocks[1].norm2, "running_mean"),
        ("res4.0.shortcut.weight", backbone.blocks[4].shortcut[0], "weight"),
        ("res5.0.shortcut.norm.bias", backbone.blocks[6].shortcut[1], "bias"),
        ("res5.1.conv1.weight", backbone.blocks[7].conv1, "weight"),
    ):
        assert torch.equal(tensors[name], getattr(module, field))
    for line in (
        "DEPTH: 18",
        "RES2_OUT_CHANNELS: 8",
        "PIXEL_MEAN: [127.5]",
        'FORMAT: "L"',
        "3 x 3",
    ):
        assert line in settings


def detectron2_forward(tensors, images):
    """Features of a ResNet of basic blocks, written against Detectron2's names alone."""

    def conv(x, name, stride, pad):
        y = torch.nn.functional.conv2d(x, tensors[f"{name}.weight"], None, stride, pad)
        w, b, m, v = (tensors[f"{name}.norm.{n}"].view(1, -1, 1, 1) for n in FROZEN)
        return (y - m) / (v + 1e-5).sqrt() * w + b

    x = conv(images, "stem.conv1", 1, 1).relu()
    for stage in (2, 3, 4, 5):
        for block in (0, 1):
            name, stride = f"res{stage}.{block}", 2 if stage > 2 and block == 0 else 1
            y = conv(conv(x, f"{name}.conv1", stride, 1).relu(), f"{name}.conv2", 1, 1)
            has = f"{name}.shortcut.weight" in tensors
            x = (y + (conv(x, f"{name}.shortcut", stride, 0) if has else x)).relu()
    return x.mean((2, 3))


def test_a_network_under_these_names_has_the_encoders_features(make_run, capsys):
    run = make_run("resnet18")
    tensors, _ = export(run, capsys)
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    expected = load_encoder(run)(images)
    features = detectron2_forward(tensors, images / 127.5 - 1)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "blocks", "convolutions", "first_shortcut"),
    [("resnet18", (2, 2, 2, 2), 2, 1), ("resnet50", (3, 4, 6, 3), 3, 0)],
)
def test_the_names_of_timms_resnets(name, blocks, convolutions, first_shortcut):
    timm = pytest.importorskip("timm", reason="needs the extra timm")
    with torch.device("meta"):
        state = timm.create_model(name, num_classes=0).state_dict()
    ours = [f"model.{n}" for n in state if not n.endswith("num_batches_tracked")]
    names = {name: detectron2_name(name) for name in ours}
    expected = set(names_of_a_resnet(blocks, convolutions, first_shortcut))
    assert set(names.values()) == expected and len(names) == len(expected)


def test_a_timm_encoder_is_exported_with_its_first_layer_for_large_images(tmp_path, capsys):
    pytest.importorskip("timm", reason="needs the extra timm")
    model = {"name": "timm", "timm": "resnet18", "image_size": 32}
    spec = EncoderSpec(model=model, channels=3, image_size=32, normalise="imagenet")
    save_encoder(
        tmp_path / "encoder.safetensors", Encoder(spec), method="simclr", backbone="online"
    )
    tensors, settings = export(tmp_path, capsys)
    assert set(tensors) == set(names_of_a_resnet((2, 2, 2, 2), 2, first_shortcut=1))
    assert tensors["stem.conv1.weight"].shape == (64, 3, 7, 7)
    assert "PIXEL_MEAN: [123.675, 116.28, 103.53]" in settings and "7 x 7" in settings


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("convnet", {}, "format=detectron2: the encoder is convnet, must be model=resnet18, or"),
        ("resnet18", {"norm": "group"}, "the encoder has model.norm=group, must be batch"),
    ],
)
def test_others_are_refused_in_one_line(make_run, capsys, name, options, says):
    run = make_run(name, **options)
    assert export_main([f"run={run}", "format=detectron2"]) == 2
    error = capsys.readouterr().err.strip()
    assert says in error and "\n" not in error and not (run / "export").exists()


def test_a_tensor_without_a_place_is_refused():
    with pytest.raises(ValueError, match=r"has no place for model\.layer1\.0\.se\.fc1\.weight"):
        detectron2_name("model.layer1.0.se.fc1.weight")


def test_a_full_disk_is_one_line(make_run, capsys, monkeypatch):
    run = make_run("resnet18")

    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error (os error 28)")

    monkeypatch.setattr("safetensors.torch.serialize_file", full)
    assert export_main([f"run={run}", "format=detectron2"]) == 1
    file = run / "export" / "detectron2.safetensors"
    assert f"cannot be written (No space left on device): '{file}'\n" in capsys.readouterr().err
    assert not any((run / "export").iterdir())
