"""Encoders by a name: folders of ours, and networks of timm with a file of weights."""

import pytest
import torch
from safetensors.torch import save_file

from orchestra_flwr.config import ConfigError
from orchestra_flwr.models.pretrained import pretrained_encoder

NAME = "mobilenetv3_small_050"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of timm's own, with its classifier."""
    timm = pytest.importorskip("timm", reason="needs the extra timm")
    file = tmp_path_factory.mktemp("weights") / "mobile.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(3)
        save_file(timm.create_model(NAME).state_dict(), file)
    return file


def test_a_network_of_timm_with_its_weights(weights):
    timm = pytest.importorskip("timm", reason="needs the extra timm")
    random = torch.get_rng_state()
    encoder = pretrained_encoder("before", NAME, weights=str(weights), size=40)
    assert torch.equal(torch.get_rng_state(), random)
    whole = timm.create_model(NAME, checkpoint_path=str(weights), num_classes=1000).eval()
    whole.reset_classifier(0)
    images = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
    mean, std = (torch.tensor(v)[:, None, None] for v in (
        (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))  # fmt: skip
    with torch.no_grad():
        assert torch.allclose(encoder(images), whole((images / 255 - mean) / std), atol=1e-4)
    usual = pretrained_encoder("before", NAME, weights=str(weights))
    assert (encoder.spec.image_size, usual.spec.image_size) == (40, 224)


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("nowhere", "pretrained", "before=nowhere: no file or folder, and as a network of timm: "),
        (NAME, "x.pth", r"before_weights=x.pth: must be .* a file \*.safetensors"),
        (NAME, "x.safetensors", "before_weights=x.safetensors: no such file"),
    ],
)
def test_what_cannot_be_read_is_one_line(name, weights, message):
    pytest.importorskip("timm", reason="needs the extra timm")
    with pytest.raises(ConfigError, match=message) as error:
        pretrained_encoder("before", name, weights=weights)
    assert "\n" not in str(error.value)


def test_a_file_keeps_its_name_in_the_message(tmp_path):
    pytest.importorskip("timm", reason="needs the extra timm")
    (tmp_path / "model.weights=1.safetensors").write_bytes(b"no weights")
    file = str(tmp_path / "model.weights=1.safetensors")
    with pytest.raises(ConfigError) as error:
        pretrained_encoder("before", NAME, weights=file)
    assert f"before_weights={file}: cannot be loaded for model.timm={NAME}" in str(error.value)
