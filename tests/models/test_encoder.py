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
    del description["sha256"], description["weights_sha256"]  # as version 0.1 wrote it
    (tmp_path / "encoder.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match="does not fit its description"):
        orchestra_flwr.load_encoder(tmp_path)


def test_a_full_disk_leaves_the_old_encoder(encoder, tmp_path, monkeypatch):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_encoder(tmp_path / "encoder.safetensors", encoder)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "step"), [("encoder.safetensors", 97), ("encoder.json", 1)], ids=["weights", "json"]
)
def test_no_flipped_bit_is_loaded(encoder, tmp_path, name, step):
    save_encoder(tmp_path / "encoder.safetensors", encoder, rounds=3)
    file = tmp_path / name
    whole = file.read_bytes()
    for place in range(0, len(whole), step):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="is damaged") as error:
            orchestra_flwr.load_encoder(tmp_path)
        assert str(error.value).startswith(str(file)) and "resume=" in str(error.value)
    file.write_bytes(whole)
    orchestra_flwr.load_encoder(tmp_path)


def test_weights_and_description_of_different_runs_do_not_mix(encoder, tmp_path):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    weights = (tmp_path / "encoder.safetensors").read_bytes()
    save_encoder(tmp_path / "encoder.safetensors", Encoder(encoder.spec))
    (tmp_path / "encoder.safetensors").write_bytes(weights)
    with pytest.raises(ValueError, match="its checksum is not that in"):
        orchestra_flwr.load_encoder(tmp_path)


def _describe(folder, change):
    """Changes the spec in `encoder.json`, which version 0.1 wrote without checksums."""
    file = folder / "encoder.json"
    description = json.loads(file.read_text())
    del description["sha256"], description["weights_sha256"]
    change(description["spec"])
    file.write_text(json.dumps(description))


def test_a_description_of_version_01_is_read(encoder, tmp_path):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    _describe(tmp_path, lambda spec: spec.pop("plugins"))
    assert orchestra_flwr.load_encoder(tmp_path).spec == encoder.spec


def test_a_wrong_description_is_named_in_one_line(encoder, tmp_path):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    _describe(tmp_path, lambda spec: spec.pop("channels"))
    with pytest.raises(ValueError) as error:
        orchestra_flwr.load_encoder(tmp_path)
    assert str(error.value) == f"{tmp_path / 'encoder.json'}: channels: must be given"


MINE = """
    from torch import nn

    from orchestra_flwr.config import Section
    from orchestra_flwr.models import Backbone


    class _Settings(Section):
        depth: int = 1


    class Flat(Backbone):
        Settings = _Settings

        def __init__(self, settings, model, channels):
            super().__init__(settings, model, channels)
            self.dim = channels * 64
            layers = [nn.Linear(self.dim, self.dim) for _ in range(settings.depth)]
            self.layers = nn.Sequential(nn.Flatten(), *layers)

        def forward(self, x):
            return self.layers(x)
"""


@pytest.mark.parametrize("plugins", [("my_package",), ()])
def test_a_backbone_of_a_users_own_is_found_again(user_package, tmp_path, plugins):
    """Whoever makes the spec names its packages, or the model knows them already."""
    user_package({"backbones/flat.py": MINE})
    model = ModelConfig.model_validate({"name": "flat", "depth": 2})
    if not plugins:
        model.look_in(("my_package",))
    spec = EncoderSpec(model=model, channels=1, image_size=8, plugins=plugins)
    encoder = Encoder(spec)
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    again = orchestra_flwr.load_encoder(tmp_path)
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(encoder(images), again(images))
    assert again.spec.plugins == ("my_package",) and again.spec.model.options == {"depth": 2}


def test_packages_that_the_backbone_is_not_from_are_not_needed(user_package, tmp_path):
    user_package({"methods/mine.py": ""})
    spec = EncoderSpec(
        model=ModelConfig(name="convnet", width=8),
        channels=3,
        image_size=16,
        plugins=("my_package",),
    )
    save_encoder(tmp_path / "encoder.safetensors", Encoder(spec))
    assert orchestra_flwr.load_encoder(tmp_path).spec.plugins == ()


def test_a_missing_package_is_one_clear_line(encoder, tmp_path):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    _describe(tmp_path, lambda spec: spec.update(plugins=["my_package"]))
    with pytest.raises(ValueError) as error:
        orchestra_flwr.load_encoder(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'encoder.json'}: model=convnet: my_package cannot be imported: "
        "ModuleNotFoundError: No module named 'my_package'"
    )


def test_a_backbone_that_is_not_there_is_one_clear_line(encoder, tmp_path):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    _describe(tmp_path, lambda spec: spec["model"].update(name="vit"))
    with pytest.raises(ValueError) as error:
        orchestra_flwr.load_encoder(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'encoder.json'}: model=vit: must be one of cct, convnet, resnet18, vit_tiny"
    )
