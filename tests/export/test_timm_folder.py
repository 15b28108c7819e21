"""A network of timm that leaves this package: timm itself reads it, to the same features."""

import pytest
import torch

from orchestra_flwr import load_encoder
from orchestra_flwr.cli import export_main
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder


def saved(folder, name, channels=3, size=32):
    model = {"name": "timm", "timm": name, "image_size": size}
    spec = EncoderSpec(model=model, channels=channels, image_size=size, normalise="half")
    torch.manual_seed(0)
    encoder = Encoder(spec)
    for buffer in encoder.buffers():
        if buffer.is_floating_point():
            buffer.add_(0.1)  # statistics of BatchNorm that are not initial ones
    save_encoder(folder / "encoder.safetensors", encoder)


@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [
        ("resnet18", 3, 32),
        pytest.param("resnet18", 1, 48, marks=pytest.mark.slow),
        pytest.param("vit_tiny_patch16_224", 3, 48, marks=pytest.mark.slow),
    ],
)
def test_timm_makes_the_same_features(name, channels, size, tmp_path, capsys):
    timm = pytest.importorskip("timm", reason="needs the extra timm")
    saved(tmp_path, name, channels, size)
    assert export_main([f"run={tmp_path}", "format=timm"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "export")
    assert len({path.stat().st_mode for path in (tmp_path / "export").iterdir()}) == 1
    place = f"local-dir:{tmp_path / 'export'}"
    network = timm.create_model(place, pretrained=True).eval()
    images = torch.rand(3, channels, size, size, generator=torch.Generator().manual_seed(1))
    settings = timm.data.resolve_model_data_config(network)
    assert settings["input_size"] == (channels, size, size)
    mean, deviation = (torch.tensor(settings[k]).view(-1, 1, 1) for k in ("mean", "std"))
    encoder = load_encoder(tmp_path)
    with torch.no_grad():
        features = network((images - mean) / deviation)
        torch.testing.assert_close(features, encoder(images), rtol=1e-4, atol=1e-5)
    classifier = timm.create_model(place, pretrained=True, num_classes=7)
    assert classifier.get_classifier().weight.shape == (7, encoder.dim)


def test_another_network_is_refused_in_a_line(make_run, capsys):
    run = make_run("resnet18")
    assert export_main([f"run={run}", "format=timm"]) == 2
    assert (
        "format=timm: the encoder is model=resnet18, must be model=timm" in capsys.readouterr().err
    )
    assert not (run / "export").exists()
