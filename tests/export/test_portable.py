"""The encoder as one network of ordinary layers, which resizes as PIL made the training images."""

import io

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image, ImageOps

from orchestra_flwr import load_encoder
from orchestra_flwr.config import ModelConfig
from orchestra_flwr.export.portable import PortableEncoder, SquareResize, resize_weights
from orchestra_flwr.export.programs import program_of
from orchestra_flwr.models import Encoder, EncoderSpec, normalisation
from orchestra_flwr.square_image import decode_image


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


def _noise_as_pil_and_as_the_file_has_it(high, wide, size):
    """Noise is the worst case: the filter overshoots everywhere, between PIL's passes, too."""
    pixels = np.random.default_rng(0).integers(0, 256, (high, wide, 3), dtype=np.uint8)
    fitted = ImageOps.fit(Image.fromarray(pixels), (size, size), Image.Resampling.BICUBIC)
    expected = torch.from_numpy(np.array(fitted)).permute(2, 0, 1).float()
    resized = SquareResize(size)(torch.from_numpy(pixels).permute(2, 0, 1)[None].float())[0]
    return expected, resized


@pytest.mark.parametrize(("high", "wide", "size"), [(48, 65, 32), (20, 33, 32), (32, 32, 224)])
def test_resizing_is_pils_fit_but_for_few_pixels(high, wide, size):
    expected, resized = _noise_as_pil_and_as_the_file_has_it(high, wide, size)
    difference = (resized - expected).abs()
    assert difference.max() <= 1 and difference.mean() < 0.005


@pytest.mark.parametrize("size", [8, 36, 224])
def test_images_of_the_check_have_the_same_pixels_in_every_runtime(size):
    """A pixel that one runtime rounds up and another down would be a difference of features.

    Only the outermost rows, whose filter is cut off, have weights that are no binary fractions.
    """
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=3, image_size=size)
    images = PortableEncoder(Encoder(spec)).example(2)
    resized = SquareResize(size)(images.float())
    for image, square in zip(images, resized, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        fitted = ImageOps.fit(picture, (size, size), Image.Resampling.BICUBIC)
        expected = torch.from_numpy(np.array(fitted)).permute(2, 0, 1).float()
        assert torch.equal(square[:, 3:-3], expected[:, 3:-3])


def test_a_high_image_is_pils_fit_to_a_grey_level():
    """Pillow 13 makes the other pass first."""
    expected, resized = _noise_as_pil_and_as_the_file_has_it(99, 40, 8)
    assert (resized - expected).abs().max() <= 1


@pytest.mark.parametrize(("high", "wide"), [(64, 28), (40, 20), (28, 64)])
def test_smooth_images_are_pils_whichever_pass_it_makes_first(high, wide):
    """Where nothing overshoots, rows before columns are columns before rows."""
    pixels = np.random.default_rng(0).integers(60, 196, (6, 6, 3), dtype=np.uint8)
    smooth = Image.fromarray(pixels).resize((wide, high), Image.Resampling.BILINEAR)
    expected = ImageOps.fit(smooth, (32, 32), Image.Resampling.BICUBIC)
    images = torch.from_numpy(np.array(smooth)).permute(2, 0, 1)[None].float()
    resized = SquareResize(32)(images)[0].permute(1, 2, 0)
    assert (resized - torch.from_numpy(np.array(expected)).float()).abs().max() <= 1.5


@pytest.mark.parametrize("orientation", [1, 6])
def test_the_guides_lines_give_a_large_jpeg_as_training_has_it(orientation):
    """Training decodes it at a fraction of its size; decoded whole, sharp edges come out else."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    file = io.BytesIO()
    Image.fromarray(noise).resize((960, 640)).save(file, "JPEG", quality=95, exif=exif)
    expected = torch.from_numpy(decode_image(file.getvalue(), 32).copy()).float()

    def difference(drafted):
        photo = Image.open(file)
        if drafted:
            photo.draft(None, (2 * 32, 2 * 32))
        photo = ImageOps.exif_transpose(photo).convert("RGB")
        images = torch.from_numpy(np.array(photo)).permute(2, 0, 1)[None].float()
        return (SquareResize(32)(images)[0] - expected).abs().max()

    assert difference(drafted=True) <= 1.5
    assert difference(drafted=False) >= 4


def test_images_of_the_right_size_stay_as_they_are():
    images = torch.randint(0, 256, (2, 3, 32, 32)).float()
    assert torch.equal(SquareResize(32)(images), images)


def test_weights_of_a_pixel_sum_to_one():
    weights = resize_weights(50, 30, 7)
    assert weights.shape == (7, 50)
    assert torch.allclose(weights.sum(1), torch.ones(7))
    assert weights[:, :3].abs().max() == 0  # farther from the middle square than the filter
