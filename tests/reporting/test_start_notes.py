"""What a run says of its images and network before it begins."""

from dataclasses import replace

import pytest
import torch

from orchestra_flwr.config import load_config
from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.reporting.start_notes import start_notes

TIMM = ("model=timm", "model.timm=mobilenetv3_small_050", "model.weights=x.safetensors")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("data=cifar10",), "images: 32 x 32 pixels (data.image_size), data.normalise=half"),
        (
            ("data=cifar10", *TIMM),
            "images: 224 x 224 pixels (data.image_size), data.normalise=imagenet, as the "
            "pretrained network expects",
        ),
        (
            ("data=cifar10", *TIMM, "data.image_size=64"),
            "images: 64 x 64 pixels (data.image_size), data.normalise=imagenet; the pretrained "
            "network expects 224 x 224 pixels, and may lose more with fewer than training gains",
        ),
        (
            ("data=cifar10", *TIMM, "data.augmentation.view_size=64"),
            "images: 224 x 224 pixels (data.image_size), data.normalise=imagenet, as the "
            "pretrained network expects; trained on views of 64 x 64 pixels "
            "(data.augmentation.view_size)",
        ),
        (
            ("data=cifar10", *TIMM, "data.normalise=half"),
            "images: 224 x 224 pixels (data.image_size), data.normalise=half; the pretrained "
            "network expects data.normalise=imagenet",
        ),
    ],
)
def test_the_size_of_images_and_how_it_came_about(overrides, says):
    if "model=timm" in overrides:
        pytest.importorskip("timm", reason="needs the extra timm")
    assert list(start_notes(load_config(overrides), None, "averaged")) == [says]


@pytest.mark.parametrize(("side", "warns"), [(None, False), (32, False), (64, False), (65, True)])
def test_a_warning_where_images_lose_more_than_half_of_their_height_and_width(side, warns):
    images = ImageSet(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    dataset = replace(Dataset("plain", images), shorter_side=side)
    _, *warnings = start_notes(load_config(["data=cifar10"]), dataset, "averaged")
    assert len(warnings) == warns
    assert all(
        "65 pixels are shrunk to 32: data.image_size=64 keeps more of what they show, but takes 4 "
        "times as long and as much memory (65 pixels: 4 times)" in w
        for w in warnings
    )


def test_how_many_images_encoders_are_evaluated_with():
    images = ImageSet(torch.zeros(5000, 3, 32, 32, dtype=torch.uint8))
    config = load_config(["data=cifar10", "evaluation.limit=5000"])
    _, line = start_notes(config, Dataset("plain", images, images), "averaged")
    assert line == (
        "encoders are evaluated with 5,000 training and 5,000 test images "
        "(evaluation.limit=5000; null: all)"
    )
    fewer = load_config(["data=cifar10", "evaluation.limit=5001"])
    assert len(list(start_notes(fewer, Dataset("plain", images, images), "averaged"))) == 1
