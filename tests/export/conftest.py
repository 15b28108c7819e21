"""Run folders as finished runs leave them."""

import pytest
import torch

from orchestra_flwr.cli import export_main
from orchestra_flwr.config import ModelConfig, config_to_yaml, load_config
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder


@pytest.fixture
def make_run(tmp_path, tiny):
    """Makes the folder of a run on digits, with an encoder whose weights are random."""

    def make(name="convnet", width=8, **options):
        return write_run(tmp_path / f"run-{name}", tiny(), name, width, **options)

    return make


@pytest.fixture(scope="module")
def exported_run(tmp_path_factory):
    """Such a folder after `orchestra-export int8=true`: once for all tests that only look at it."""
    config = load_config(
        ["data=digits", "data.train_limit=120", "data.test_limit=60", "federation.clients=4"]
    )
    folder = write_run(tmp_path_factory.mktemp("exported") / "run", config, "convnet", 16)
    assert export_main([f"run={folder}", "int8=true", "calibration=64"]) == 0
    return folder


def write_run(folder, config, name, width, **options):
    folder.mkdir()
    (folder / "config.yaml").write_text(config_to_yaml(config))
    torch.manual_seed(0)
    model = ModelConfig(name=name, width=width, **options)
    encoder = Encoder(EncoderSpec(model=model, channels=1, image_size=8))
    for module in encoder.modules():  # as after training: BatchNorm has seen images
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 2)
    save_encoder(folder / "encoder.safetensors", encoder, method="orchestra", backbone="target")
    return folder
