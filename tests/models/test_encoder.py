import json

import pytest
import torch

import orchestra_flwr
from orchestra_flwr.config import ModelConfig
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder


@pytest.fixture
def encoder():
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=3, image_size=16)
    return Encoder(spec)


def test_survives_saving_bit_for_bit(encoder, tmp_path):
    save_encoder(tmp_path / "encoder.safetensors", encoder, rounds=3)
    again = orchestra_flwr.load_encoder(tmp_path)  # the run folder
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    assert torch.equal(encoder(images), again(images))
    assert json.loads((tmp_path / "encoder.json").read_text())["about"] == {"rounds": 3}
    assert not again.training and not any(p.requires_grad for p in again.parameters())


def test_uint8_and_float_images_mean_the_same(encoder):
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    torch.testing.assert_close(encoder(images), encoder(images.float() / 255))


@pytest.mark.parametrize("shape", [(2, 1, 16, 16), (2, 3, 8, 16), (3, 16, 16)])
def test_refuses_other_shapes(encoder, shape):
    with pytest.raises(ValueError, match="expects images"):
        encoder(torch.zeros(shape))


def test_missing_files_are_named(tmp_path, encoder):
    with pytest.raises(FileNotFoundError, match="encoder.safetensors"):
        orchestra_flwr.load_encoder(tmp_path)
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    (tmp_path / "encoder.json").unlink()
    with pytest.raises(FileNotFoundError, match="encoder.json"):
        orchestra_flwr.load_encoder(tmp_path)


def test_weights_of_another_model_are_refused(tmp_path, encoder):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    description = json.loads((tmp_path / "encoder.json").read_text())
    description["spec"]["model"]["width"] = 16
    (tmp_path / "encoder.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match="does not fit its description"):
        orchestra_flwr.load_encoder(tmp_path)


def test_a_full_disk_leaves_the_old_encoder(encoder, tmp_path, monkeypatch):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(weights, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orchestra_flwr.models.encoder.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_encoder(tmp_path / "encoder.safetensors", encoder)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
