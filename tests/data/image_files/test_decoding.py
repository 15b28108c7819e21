import io
import logging

import numpy as np
import pytest
import torch
from PIL import Image

from orchestra_flwr.data.image_files.decoding import (
    MAX_BYTES,
    check_size,
    decode_files,
    decode_image,
)


def _gradient(width: int, height: int) -> np.ndarray:
    """Red grows to the right, green downwards: float in [0, 1], (height, width, 3)."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    return np.stack([x, y, np.full_like(x, 0.5)], axis=2)


def _picture(width: int = 40, height: int = 40) -> Image.Image:
    return Image.fromarray((_gradient(width, height) * 255).round().astype(np.uint8))


def _file(image: Image.Image, kind: str = "png", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("RGB", "png"), ("RGBA", "png"), ("P", "png"), ("P", "gif"), ("CMYK", "jpeg"),
     ("RGB", "webp"), ("RGB", "bmp"), ("CMYK", "tiff"), ("YCbCr", "jpeg")],
)  # fmt: skip
def test_colour_modes_become_rgb(mode: str, kind: str):
    image = decode_image(_file(_picture().convert(mode), kind), 32)

    assert image.dtype == np.uint8
    expected = _gradient(32, 32).transpose(2, 0, 1) * 255
    assert np.abs(image - expected).mean() < 26  # a palette and JPEG are coarse


@pytest.mark.parametrize("mode", ["L", "LA", "1"])
def test_gray_modes_become_equal_channels(mode: str):
    image = decode_image(_file(_picture().convert(mode)), 32)

    assert (image == image[0]).all()
    assert image.std() > 10


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_deep_gray_is_scaled_and_not_clipped(dtype: type):
    values = _gradient(32, 32)[:, :, 0] * (1 if dtype is np.float32 else 65535)
    image = decode_image(_file(Image.fromarray(values.astype(dtype)), "tiff"), 32)

    assert np.abs(image[0] - _gradient(32, 32)[:, :, 0] * 255).max() <= 1


def test_a_palette_with_transparency_is_read_quietly(recwarn: pytest.WarningsRecorder):
    palette = _picture().convert("P")
    decode_image(_file(palette, transparency=bytes(range(256))), 32)

    assert not recwarn.list


@pytest.mark.parametrize(("width", "height"), [(90, 45), (45, 90), (33, 32), (1, 50), (7, 7)])
def test_the_middle_square_is_kept(width: int, height: int):
    image = decode_image(_file(_picture(width, height)), 16)

    assert image.shape == (3, 16, 16)
    assert image[:2].mean(axis=(1, 2)) == pytest.approx([127.5, 127.5], abs=3 if width > 1 else 130)
    if (width, height) == (90, 45):  # the middle half of the width
        assert image[0, :, 0].mean() == pytest.approx(255 * 0.26, abs=6)
        assert image[1, 0].mean() == pytest.approx(255 * 0.02, abs=6)


def test_shrinking_averages():
    checkers = np.indices((64, 64)).sum(axis=0) % 2 * 255
    image = decode_image(_file(Image.fromarray(checkers.astype(np.uint8))), 8)

    assert np.abs(image.astype(int) - 128)[:, 1:-1, 1:-1].max() <= 3


def test_an_image_of_the_right_size_keeps_its_bits():
    picture = _picture(32, 32)

    assert np.array_equal(decode_image(_file(picture), 32), np.asarray(picture).transpose(2, 0, 1))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_image_upright(orientation: int):
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    upright = _picture(32, 32)
    stored = upright.transpose(undo[orientation]) if orientation in undo else upright
    exif = Image.Exif()
    exif[0x0112] = orientation

    assert np.array_equal(
        decode_image(_file(stored, exif=exif), 32), np.asarray(upright).transpose(2, 0, 1)
    )


def test_a_large_jpeg_is_decoded_small_and_right():
    image = decode_image(_file(_picture(1600, 1600), "jpeg"), 32)

    assert np.abs(image - _gradient(32, 32).transpose(2, 0, 1) * 255).max() < 8


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_broken_files_are_named_counted_and_skipped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    good = _file(_picture())
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 60, 3), np.uint8))
    files = {
        "a.png": good,
        "empty.jpg": b"",
        "text.jpg": b"this is no image",
        "cut.jpg": _file(noise, "jpeg")[:1500],
        "cut.png": _file(noise)[:3000],
        "bomb.png": _file(_picture(101, 100)),
        "great_bomb.png": _file(_picture(300, 300)),
        "z.png": good,
    }
    with caplog.at_level(logging.WARNING, "orchestra_flwr.data"):
        decoded = decode_files(list(files), files.__getitem__, 32)

    assert decoded.good == [0, 7]
    assert torch.equal(decoded.images[0], decoded.images[1])
    reasons = dict(decoded.broken)
    assert list(reasons) == list(files)[1:-1]
    assert reasons["text.jpg"] == "not an image"
    assert "truncated" in reasons["cut.jpg"]
    assert "too many pixels" in reasons["bomb.png"]
    (warning,) = caplog.messages
    assert warning.startswith("skipped 6 of 8 image files: empty.jpg: ")
    assert warning.endswith("; and 1 more")


def test_order_is_that_of_the_names():
    shades = {f"{i}.png": _file(Image.new("L", (8, 8), i)) for i in range(200)}
    images = decode_files(list(shades), shades.__getitem__, 8).images

    assert images[:, 0, 0, 0].tolist() == list(range(200))


def test_sizes_that_no_image_has_are_refused():
    check_size(MAX_BYTES)
    for count in (0, MAX_BYTES + 1):
        with pytest.raises(ValueError, match=r"empty|too large"):
            check_size(count)
