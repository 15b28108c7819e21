"""The Compact Convolutional Transformer."""

import pytest
import torch
from torch import nn

from orchestra_flwr.config import ConfigError, ModelConfig
from orchestra_flwr.models import build_backbone


def build(size=8, channels=1, **options):
    torch.manual_seed(0)
    model = {"name": "cct", "width": 16, "image_size": size, **options}
    return build_backbone(ModelConfig.model_validate(model), channels)


@pytest.mark.parametrize(
    ("layers", "size", "count"),
    [(4, 64, 505_409), (2, 32, 283_723 - 10 * 129)],  # the latter is published as .28 M with fc
)
def test_it_has_as_many_parameters_as_published(layers, size, count):
    backbone = build(size, 3, width=128, layers=layers)
    assert sum(p.numel() for p in backbone.parameters()) == count
    assert backbone.dim == 128 and list(backbone.buffers()) == []


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 33)])
@pytest.mark.parametrize("convolutions", [1, 2, 3])
def test_features(channels, size, convolutions):
    backbone = build(size, channels, convolutions=convolutions)
    features = backbone(torch.randn(3, channels, size, size))
    assert features.shape == (3, 16) and torch.isfinite(features).all()
    features.sum().backward()
    assert all(p.grad is not None for p in backbone.parameters())


def test_an_image_is_treated_alone_and_alike_in_training_and_evaluation():
    """LayerNorm, and no dropout: no random number is drawn."""
    backbone, images = build(), torch.randn(5, 1, 8, 8)
    state = torch.get_rng_state()
    together = backbone.train()(images)
    torch.testing.assert_close(together[:2], backbone(images[:2]), atol=1e-5, rtol=1e-4)
    assert torch.equal(together, backbone.eval()(images))
    assert torch.equal(torch.get_rng_state(), state)


def slow_attention(layer, tokens):
    """softmax(q k' / sqrt(d)) v, head by head and token by token."""
    query, key, value = layer.qkv(layer.norm1(tokens)).chunk(3, dim=-1)
    width = tokens.shape[-1] // layer.heads
    parts = []
    for head in range(layer.heads):
        q, k, v = (heads[:, head * width : (head + 1) * width] for heads in (query, key, value))
        rows = [((q[t] @ k.T) / width**0.5).softmax(0) @ v for t in range(len(tokens))]
        parts.append(torch.stack(rows))
    return torch.cat(parts, dim=1)


def test_a_layer_has_its_second_norm_on_the_residual_stream():
    layer = build(heads=4).layers[0]
    tokens = torch.randn(6, 16)
    stream = layer.norm2(tokens + layer.projection(slow_attention(layer, tokens)))
    torch.testing.assert_close(
        layer(tokens[None])[0], stream + layer.mlp(stream), atol=1e-5, rtol=1e-4
    )
    assert layer.qkv.bias is None and layer.projection.bias is not None


def test_tokens_are_pooled_by_their_scores():
    backbone, image = build(), torch.randn(1, 1, 8, 8)
    tokens = backbone.tokenizer(image).flatten(2).mT + backbone.positions
    tokens = backbone.norm(backbone.layers(tokens))[0]
    weights = backbone.score(tokens).flatten().softmax(0)
    expected = sum(weight * token for weight, token in zip(weights, tokens, strict=True))
    torch.testing.assert_close(backbone(image)[0], expected)
    assert weights.shape == (4,)
    assert not any(isinstance(m, nn.Dropout | nn.BatchNorm2d) for m in backbone.modules())


def test_positions_are_those_of_one_size_of_images(tiny):
    with pytest.raises(ValueError, match=r"^model\.image_size=8: images of 9 x 9 pixels$"):
        build()(torch.randn(1, 1, 9, 9))
    assert tiny("model=cct", "model.width=16").model.settings.image_size == 8  # the digits'
    with pytest.raises(ConfigError, match=r"^model\.image_size=9: must be data\.image_size=8$"):
        tiny("model=cct", "model.image_size=9")
    with pytest.raises(ConfigError, match=r"^model\.heads=3: must divide model\.width=16$"):
        tiny("model=cct", "model.width=16", "model.heads=3")
    with pytest.raises(ValueError, match=r"^model\.heads=3: must divide model\.width=16$"):
        build(heads=3)
