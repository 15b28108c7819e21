"""Features of images as they are: in evaluation mode, which ends with the passes."""

import pytest
import torch
from torch import nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.models import Encoder, EncoderSpec, extract_features, image_batches


def images(count):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=generator)


def convnet():
    torch.manual_seed(0)
    return Encoder(
        EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=1, image_size=8)
    )


def test_features_are_those_of_each_image_alone_in_order():
    encoder, x = convnet(), images(7)
    alone = torch.cat([encoder(image[None]) for image in x])
    features = extract_features(encoder, x, batch_size=3)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, alone)
    of_backbone = extract_features(encoder.backbone, x, 3, by=encoder.spec.normalise)
    torch.testing.assert_close(of_backbone, features, rtol=0, atol=0)


def test_a_network_in_training_keeps_its_statistics_and_each_modules_mode():
    encoder, x = convnet(), images(5)
    encoder.train()
    frozen = next(m for m in encoder.modules() if isinstance(m, nn.BatchNorm2d))
    frozen.eval()
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    modes = [m.training for m in encoder.modules()]
    first = extract_features(encoder, x, batch_size=2)
    assert [m.training for m in encoder.modules()] == modes
    assert not all(modes)
    assert any(modes)
    torch.testing.assert_close(dict(encoder.state_dict()), before, rtol=0, atol=0)
    torch.testing.assert_close(extract_features(encoder, x, batch_size=2), first, rtol=0, atol=0)


def test_mode_is_restored_after_an_error():
    encoder = convnet().train()
    with pytest.raises(ValueError, match="expects images"):
        extract_features(encoder, images(2)[:, :, :4], batch_size=2)
    assert encoder.training


class Remembering(nn.Module):
    """As LeViT in timm 1.0.15: what its weights make is kept until training begins."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.kept = None

    def train(self, mode=True):
        super().train(mode)
        self.kept = None if mode else self.kept
        return self

    def forward(self, x):
        if self.training:
            return self.weight * x.flatten(1)
        self.kept = self.weight * 1 if self.kept is None else self.kept
        return self.kept * x.flatten(1)


@pytest.mark.parametrize("training", [True, False])
def test_features_are_those_of_the_weights_that_a_network_has_by_now(training):
    encoder, x = Remembering().train(training), images(2)
    extract_features(encoder, x, 2, by="none")
    encoder.load_state_dict({"weight": torch.zeros(1)})
    assert not extract_features(encoder, x, 2, by="none").any()


def test_features_can_be_learned_from():
    features = extract_features(convnet(), images(4), batch_size=2)
    weight = torch.zeros(features.shape[1], requires_grad=True)
    (features @ weight).sum().backward()
    torch.testing.assert_close(weight.grad, features.sum(0))


def test_no_images_are_refused():
    with pytest.raises(ValueError, match="no images"):
        extract_features(convnet(), images(0), batch_size=2)


def test_progress_of_the_passes():
    seen = []
    extract_features(
        convnet(), images(7), batch_size=3, on_progress=lambda *counts: seen.append(counts)
    )
    assert seen == [(3, 7), (6, 7), (7, 7)]


def test_features_in_bfloat16_are_those_in_float32_but_for_rounding():
    encoder, x = convnet(), images(20)
    exact = extract_features(encoder, x, batch_size=8)
    rounded = extract_features(encoder, x, batch_size=8, precision="bfloat16")
    assert rounded.dtype == torch.float32
    error = (rounded - exact).norm() / exact.norm()
    assert 1e-5 < error < 1e-2
    torch.testing.assert_close(extract_features(encoder, x, batch_size=8), exact, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("size", "device", "most"),
    [(64, "cpu", 256), (65, "cpu", 248), (224, "cpu", 20), (2048, "cpu", 1), (224, "cuda", 256)],
)
def test_large_images_pass_a_cpu_in_small_batches(size, device, most):
    images = torch.arange(300.0).view(300, 1, 1, 1).expand(300, 3, size, size)  # no memory
    batches = image_batches(images, 256, torch.device(device))
    assert {len(batch) for batch in batches[:-1]} == {most}
    assert [int(x) for batch in batches for x in batch[:, 0, 0, 0]] == list(range(300))


def test_batches_are_never_larger_than_was_asked_for():
    assert [
        len(batch) for batch in image_batches(torch.zeros(7, 1, 8, 8), 3, torch.device("cpu"))
    ] == [3, 3, 1]
