"""The encoder as one network of ordinary layers."""

import pytest
import torch

from orchestra_flwr import load_encoder
from orchestra_flwr.config import ModelConfig
from orchestra_flwr.export.portable import PortableEncoder
from orchestra_flwr.export.programs import program_of
from orchestra_flwr.models import Encoder, EncoderSpec, normalisation


@pytest.mark.parametrize("any_size", [True, False])
def test_it_gives_the_encoders_features(make_run, any_size):
    encoder = load_encoder(make_run())
    portable = PortableEncoder(encoder, any_size=any_size)
    images = portable.example(40, side=8)
    torch.testing.assert_close(portable(images), encoder(images), rtol=1e-4, atol=1e-5)


def test_exported_convolutions_are_torchs_own(make_run):
    encoder = load_encoder(make_run("resnet18"))
    nodes = program_of(PortableEncoder(encoder, any_size=False)).graph.nodes
    called = [str(node.target) for node in nodes if node.op == "call_function"]
    count = sum(isinstance(module, torch.nn.Conv2d) for module in encoder.modules())
    assert sum("conv" in name for name in called) == count == 20
    assert not any("linear" in name or "mkldnn" in name or "unfold" in name for name in called)


@pytest.mark.parametrize("by", ["imagenet", "none"])
def test_an_encoder_that_is_exported_first_in_a_process_still_computes_numbers(by):
    spec = EncoderSpec(
        model=ModelConfig(name="convnet", width=8), channels=3, image_size=16, normalise=by
    )
    portable = PortableEncoder(Encoder(spec), any_size=False)
    normalisation._on.cache_clear()
    program = program_of(portable)
    images = portable.example(3)
    expected = portable(images)
    assert type(expected) is torch.Tensor
    torch.testing.assert_close(program.module()(images), expected)
