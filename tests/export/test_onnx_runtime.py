"""8-bit models of onnxruntime: what becomes 8 bits, whatever its optimiser makes of the graph."""

import pytest
import torch
from torch import nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.export.onnx_runtime import quantised
from orchestra_flwr.export.portable import PortableEncoder
from orchestra_flwr.export.programs import ExportError, onnx_model, program_of
from orchestra_flwr.models import Encoder, EncoderSpec

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")


@pytest.fixture
def encoder():
    def make(size, **model):
        spec = EncoderSpec(model=ModelConfig(**model), channels=3, image_size=size)
        return Encoder(spec).eval()

    return make


def _eight_bits(encoder, size):
    """A quantised model's convolutions and products: whether both of their inputs are 8-bit."""
    model = onnx_model(program_of(PortableEncoder(encoder, any_size=True)), {})
    images = torch.randint(0, 256, (4, 3, size, size), dtype=torch.uint8)
    graph = onnx.load_from_string(quantised(model, images, 4)).graph
    made_by = {name: node.op_type for node in graph.node for name in node.output}
    kinds: dict[str, list[bool]] = {}
    for node in graph.node:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            sources = {made_by.get(name) for name in node.input[:2]}
            kinds.setdefault(node.op_type, []).append(sources == {"DequantizeLinear"})
    return kinds


def test_a_backbone_whose_scopes_the_optimiser_drops(encoder):
    """It did for the network of `preset=adapt`, which stayed in float32 without a word."""
    pytest.importorskip("timm", reason="needs the extra timm")
    kinds = _eight_bits(encoder(64, name="timm", timm="test_efficientnet"), 64)
    assert len(kinds["Conv"]) > 10 and all(kinds["Conv"])
    assert kinds["MatMul"] == [False, False]  # they resize


def test_a_backbone_with_nothing_to_quantise_is_refused(encoder):
    """A file of 8 bits in name alone would be taken for a small one."""
    bare = encoder(8, name="convnet", width=8)
    bare.backbone = nn.Flatten()
    with pytest.raises(ExportError, match=r"^int8=true: onnxruntime found nothing .* to quantise"):
        _eight_bits(bare, 8)
