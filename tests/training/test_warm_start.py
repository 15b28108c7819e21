"""`init=`: a run begins with the encoder of another one."""

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.models import Encoder, EncoderSpec, build_backbone, save_encoder
from orchestra_flwr.training import build_learner, starting_learner


@pytest.fixture
def saved(tiny, tmp_path):
    """A run folder with an encoder of other weights than any seed draws."""
    config = tiny()
    backbone = build_backbone(config.model, config.data.channels)
    with torch.no_grad():
        for tensor in backbone.state_dict().values():
            tensor.fill_(3)
    save_encoder(tmp_path / "encoder.safetensors", Encoder(EncoderSpec.of(config), backbone))
    return tmp_path


@pytest.mark.parametrize("method", ["orchestra", "byol", "simclr"])
@pytest.mark.parametrize("file", ["", "encoder.safetensors"])
def test_all_backbones_begin_with_it_and_nothing_else_changes(tiny, saved, method, file):
    config = tiny(f"method={method}", f"init={saved / file}")
    state = starting_learner(config, 1).state_dict()
    drawn = build_learner(config, 1).state_dict()
    loaded = {name for name, tensor in state.items() if (tensor == 3).all()}
    assert loaded == {name for name in state if "backbone." in name}
    assert all(torch.equal(state[name], drawn[name]) for name in state.keys() - loaded)


def test_without_it_the_seed_says_all(tiny):
    state, drawn = starting_learner(tiny(), 1).state_dict(), build_learner(tiny(), 1).state_dict()
    assert all(torch.equal(state[name], drawn[name]) for name in drawn)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["model.width=16"], "its encoder has model.width=8, this run model.width=16; they must"),
        (["model.norm=group"], "its encoder has model.norm=batch, this run model.norm=group"),
        (["data.image_size=16"], "its encoder has data.image_size=8, this run data.image_size=16"),
        (["model=resnet18"], "its encoder has model=convnet, this run model=resnet18"),
    ],
)
def test_another_kind_of_encoder_is_refused(tiny, saved, overrides, says):
    with pytest.raises(ConfigError) as error:
        starting_learner(tiny(f"init={saved}", *overrides), 1)
    assert str(error.value).startswith(f"init={saved}: {says}")


def test_heads_may_differ(tiny, saved):
    starting_learner(tiny(f"init={saved}", "model.projector_dim=24"), 1)


def test_a_folder_without_an_encoder_is_refused(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"^init=.*encoder.safetensors: no such file"):
        starting_learner(tiny(f"init={tmp_path}"), 1)


def test_batch_norm_that_stays_with_the_clients_is_refused(tiny, saved):
    with pytest.raises(ConfigError, match="^init=.*must not be given with merging=fedbn"):
        tiny(f"init={saved}", "merging=fedbn")
