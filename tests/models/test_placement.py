import pytest
import torch

from orchestra_flwr import load_encoder
from orchestra_flwr.config import ConfigError
from orchestra_flwr.models import resolve_device


def test_a_gpu_that_does_not_exist_is_refused():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert resolve_device("auto").type == "cpu"
    with pytest.raises(ConfigError, match="device=cuda:0: 0 GPUs are visible"):
        resolve_device("cuda:0")
    with pytest.raises(ConfigError, match="device=cuda: 0 GPUs are visible here"):
        load_encoder("run", device="cuda")
    with pytest.raises(ConfigError, match="device=cuda: 0 GPUs are visible here"):
        load_encoder("run", device=torch.device("cuda"))


def test_a_name_that_torch_does_not_know_is_refused():
    with pytest.raises(ConfigError, match="device=gpu: must be auto, cpu, cuda or cuda:N"):
        load_encoder("run", device="gpu")
