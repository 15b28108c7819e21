"""Run folders as finished runs leave them."""

import pytest
import torch

from orchestra_flwr.config import ModelConfig, config_to_yaml
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder


@pytest.fixture
def make_run(tmp_path, tiny):
    """Makes the folder of a run on digits, with an encoder whose weights are random."""

    def make(name="convnet", width=8, **options):
        folder = tmp_path / f"run-{name}"
        folder.mkdir()
        (folder / "config.yaml").write_text(config_to_yaml(tiny()))
        torch.manual_seed(0)
        model = ModelConfig(name=name, width=width, **options)
        encoder = Encoder(EncoderSpec(model=model, channels=1, image_size=8))
        for module in encoder.modules():  # as after training: BatchNorm has seen images
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.running_mean.uniform_(-0.1, 0.1)
                module.running_var.uniform_(0.5, 2)
        save_encoder(folder / "encoder.safetensors", encoder, backbone="target")
        return folder

    return make
