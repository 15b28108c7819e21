import pytest
import torch

import orchestra_flwr
from orchestra_flwr.config import ConfigError
from orchestra_flwr.models import Encoder, EncoderSpec, normalise, save_encoder
from orchestra_flwr.models.normalisation import STATISTICS, nearest_normalisation


def test_a_pixel_by_hand():
    image = torch.tensor([0.5, 0.25, 1.0]).view(1, 3, 1, 1)
    for by, expected in (
        ("half", (0.0, -0.5, 1.0)),
        ("cifar", ((0.5 - 0.4914) / 0.2023, (0.25 - 0.4822) / 0.1994, (1 - 0.4465) / 0.201)),
        ("imagenet", ((0.5 - 0.485) / 0.229, (0.25 - 0.456) / 0.224, (1 - 0.406) / 0.225)),
        ("clip", ((0.5 - 0.48145466) / 0.26862954, (0.25 - 0.4578275) / 0.26130258,
                  (1 - 0.40821073) / 0.27577711)),
        ("none", (0.5, 0.25, 1.0)),
    ):  # fmt: skip
        pixel = normalise(image.clone(), by)
        torch.testing.assert_close(pixel.flatten(), torch.tensor(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("mean", "deviation", "nearest"),
    [
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "half"),
        ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "imagenet"),
        ((0.486, 0.459, 0.408), (0.235, 0.235, 0.235), "imagenet"),  # timm's DPN
        ((0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758), "clip"),
        ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "none"),
    ],
)
def test_the_nearest_normalisation(mean, deviation, nearest):
    assert nearest_normalisation(mean, deviation) == nearest


def test_gradients_for_images_pass_after_an_evaluation():
    with torch.inference_mode():  # as features are computed
        normalise(torch.zeros(1, 3, 2, 2, dtype=torch.float64), "imagenet")
    images = torch.zeros(1, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    normalise(images, "imagenet").sum().backward()
    torch.testing.assert_close(
        images.grad[0, :, 0, 0], 1 / torch.tensor(STATISTICS["imagenet"][1]).double()
    )


def test_half_is_its_mean_and_deviation_bit_for_bit():
    images = torch.randint(0, 256, (3, 1, 5, 5)).float() / 255
    (mean,), (deviation,) = STATISTICS["half"]
    assert torch.equal(normalise(images, "half"), (images - mean) / deviation)


@pytest.mark.parametrize("by", STATISTICS)
def test_an_image_is_left_as_it_is(by):
    images = torch.rand(2, 3, 4, 4)
    before = images.clone()
    normalise(images, by)
    assert torch.equal(images, before)


@pytest.mark.parametrize("by", STATISTICS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_an_encoder_of_any_precision_takes_images(tiny, by, dtype):
    config = tiny("data=image_folder", "data.root=.", f"data.normalise={by}")
    spec = EncoderSpec(model=config.model, channels=3, image_size=32, normalise=by)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    features = Encoder(spec).to(dtype)(images)
    assert features.dtype == dtype and features.isfinite().all()


def test_the_encoder_takes_its_normalisation_along(tiny, tmp_path):
    config = tiny("data=image_folder", "data.root=.", "data.normalise=imagenet")
    spec = EncoderSpec(model=config.model, channels=3, image_size=32, normalise="imagenet")
    encoder = Encoder(spec)
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    again = orchestra_flwr.load_encoder(tmp_path)
    assert again.spec.normalise == "imagenet"
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    features = again(images)
    assert torch.equal(features, encoder(images))
    expected = encoder.backbone(normalise(images.float() / 255, "imagenet"))
    assert torch.equal(features, expected)


def test_gray_images_have_no_normalisation_of_three_channels(tiny):
    with pytest.raises(ConfigError, match="data.normalise=cifar: must be half with data=digits"):
        tiny("data.normalise=cifar")
