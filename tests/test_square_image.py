"""One image as training and the saved encoder read it."""

import io
import os
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image, ImageOps

from orchestra_flwr import optional_formats
from orchestra_flwr.config import DataConfig
from orchestra_flwr.data import load_dataset
from orchestra_flwr.square_image import (
    _ONE_LARGE_IMAGE,
    FORMATS,
    MAX_BYTES,
    check_size,
    decode_image,
    fit_channels,
    in_range,
    square_image,
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


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_pixel_that_is_not_finite_is_black_and_scales_nothing(value: float):
    """One infinite pixel made all others black."""
    values = _gradient(32, 32)[:, :, 0].astype(np.float32) * 300
    good = values.copy()
    values[3, 4], good[3, 4] = value, 0
    images = [decode_image(_file(Image.fromarray(v), "tiff"), 32) for v in (values, good)]
    assert (images[0] == images[1]).all() and images[0].max() == 255


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_picture_in_memory_that_is_not_finite_is_refused(value: float, tmp_path: Path):
    """As an array with the same values; one that was opened is read as its file is."""
    values = _gradient(32, 32)[:, :, 0].astype(np.float32)
    values[3, 4] = value
    for image in (Image.fromarray(values), values):
        with pytest.raises(ValueError, match="nan|inf|NaN or infinity"):
            square_image(image, 8)
    file = tmp_path / "a.tiff"
    Image.fromarray(values).save(file)
    with Image.open(file) as opened:
        assert torch.equal(square_image(opened, 8), square_image(file, 8))


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


def _bad_resolution(orientation: int) -> bytes:
    """EXIF data of two tags: the orientation, and a YResolution that is text, not a fraction."""
    tags = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    tags += struct.pack("<HHI4s", 0x011B, 2, 3, b"72\0\0")
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + tags + bytes(4)


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_pil_does(orientation: int, kind: str):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = _file(_picture(40, 24), kind, exif=exif)
    with Image.open(io.BytesIO(file)) as opened:
        turned = ImageOps.exif_transpose(opened)
    expected = ImageOps.fit(turned.convert("RGB"), (32, 32), Image.Resampling.BICUBIC)

    assert np.array_equal(decode_image(file, 32), np.asarray(expected).transpose(2, 0, 1))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_malformed_exif_tag_costs_no_image(orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    bad, good = (
        _file(_picture(40, 24), "jpeg", exif=exif) for exif in (_bad_resolution(orientation), exif)
    )

    assert np.array_equal(decode_image(bad, 32), decode_image(good, 32))


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
@pytest.mark.parametrize("damaged", [b"garbage!", b"II+\0\x08\0"])
def test_exif_data_that_cannot_be_read_cost_no_image(damaged: bytes, kind: str):
    """A JPEG's own resolution makes PIL read the EXIF data only when its orientation is asked."""
    bad, good = (
        _file(_picture(40, 24), kind, dpi=(72, 72), **exif)
        for exif in ({"exif": b"Exif\0\0" + damaged}, {})
    )

    assert np.array_equal(decode_image(bad, 32), decode_image(good, 32))


def test_a_large_jpeg_is_decoded_small_and_right():
    image = decode_image(_file(_picture(1600, 1600), "jpeg"), 32)

    assert np.abs(image - _gradient(32, 32).transpose(2, 0, 1) * 255).max() < 8


def test_a_photograph_of_more_pixels_than_pil_opens_is_read(monkeypatch, recwarn):
    """Phones make 200 million; a JPEG is decoded at an eighth of its size, unless progressive."""
    picture = Image.fromarray(np.full((400, 600, 3), 100, np.uint8))
    plain, progressive = io.BytesIO(), io.BytesIO()
    picture.save(plain, "jpeg")
    picture.save(progressive, "jpeg", progressive=True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)  # Image.open raises from 20,000 on
    assert np.abs(decode_image(plain.getvalue(), 16).astype(int) - 100).max() <= 1
    with pytest.raises(ValueError, match="too many pixels .600 x 400"):
        decode_image(progressive.getvalue(), 16)
    assert not recwarn.list


def test_sizes_that_no_image_has_are_refused():
    check_size(MAX_BYTES)
    for count in (0, MAX_BYTES + 1):
        with pytest.raises(ValueError, match=r"empty|too large"):
            check_size(count)


def test_a_file_a_pil_image_and_an_opened_jpeg_are_one_image(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    file = tmp_path / "large.jpg"
    _picture(900, 700).save(file, exif=exif)
    expected = torch.tensor(decode_image(file.read_bytes(), 32))

    for image in (file, str(file), Image.open(file)):
        assert torch.equal(square_image(image, 32), expected)
    opened = Image.open(file)
    opened.load()  # at full size: the same but for rounding
    assert opened.size == (900, 700)
    assert (square_image(opened, 32).int() - expected.int()).abs().max() <= 4


def test_training_reads_a_folder_with_the_same_bits(tmp_path: Path):
    for number, size in enumerate([(50, 30), (16, 16), (200, 260)]):
        _picture(*size).save(tmp_path / f"{number}.jpg")
    options = {"root": str(tmp_path), "cache": str(tmp_path / ".cache"), "image_size": 16}
    data = load_dataset(DataConfig.model_validate({"name": "image_folder", **options}))

    for name, image in zip(data.train.files, data.train.images, strict=True):
        assert torch.equal(square_image(tmp_path / name, 16), image)


def test_training_reads_arrays_of_its_size_with_the_same_bits():
    from sklearn.datasets import load_digits

    data = load_dataset(DataConfig(name="digits", image_size=8, test_limit=3))
    raw = (load_digits().images * (255 / 16)).round().astype(np.uint8)  # float: 16 levels
    images = torch.stack([square_image(image, 8, channels=1) for image in raw])

    assert all((images == image).flatten(1).all(1).any() for image in data.train.images[:20])


@pytest.mark.parametrize(("width", "height"), [(20, 20), (53, 40), (40, 53), (64, 48), (9, 12)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_an_array_has_the_pixels_of_its_pil_image(width, height, mode):
    """Also where the square begins between two pixels, or its borders see those beyond."""
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    expected = square_image(Image.fromarray(array), 12)
    tensor = torch.from_numpy(array)
    for image in (array, array / 255, tensor.permute(2, 0, 1) if mode == "RGB" else tensor):
        assert torch.equal(square_image(image, 12), expected)


def test_arrays_and_tensors_of_all_types_are_one_image():
    pixels = torch.from_numpy(np.array(_picture(20, 20))).permute(2, 0, 1)
    array = np.array(_picture(20, 20))
    expected = square_image(_picture(20, 20), 12)

    for kind in (np.uint8, np.uint16, np.int64):
        assert torch.equal(square_image(array.astype(kind), 12), expected)
    for dtype in (torch.uint8, torch.int16, torch.int64):
        assert torch.equal(square_image(pixels.to(dtype), 12), expected)
    for floats in (array / 255, (array / 255).astype(np.float32), pixels.double() / 255):
        assert torch.equal(square_image(floats, 12), expected)
    assert torch.equal(square_image(array[:, ::-1], 12), square_image(array[:, ::-1].copy(), 12))


def test_an_array_of_the_right_size_keeps_its_values():
    pixels = torch.randint(0, 256, (3, 9, 9), dtype=torch.uint8)
    assert torch.equal(square_image(pixels, 9), pixels)
    assert torch.equal(square_image(pixels.permute(1, 2, 0).numpy(), 9), pixels)


def test_the_middle_of_an_array_is_kept():
    pixels = torch.randint(0, 256, (3, 8, 14), dtype=torch.uint8)
    assert torch.equal(square_image(pixels, 8), pixels[:, :, 3:11])


def test_colours_become_gray_and_gray_becomes_colours():
    gray = torch.randint(0, 256, (9, 9), dtype=torch.uint8)
    assert torch.equal(square_image(gray, 9), gray.expand(3, 9, 9))
    assert torch.equal(square_image(gray.numpy()[:, :, None], 9, channels=1), gray[None])
    array = np.array(_picture(9, 9))
    expected = np.array(Image.fromarray(array).convert("L"))
    for image in (array, Image.fromarray(array)):
        assert np.array_equal(square_image(image, 9, channels=1)[0], expected)
    white = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    assert fit_channels(white, 1).tolist() == [[[[255, 255], [255, 255]]]]
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    assert fit_channels(red, 1).item() == 76 and fit_channels(red, 3) is red
    opaque = np.dstack([array, np.full((9, 9), 7, np.uint8)])  # transparency is left out
    assert torch.equal(square_image(opaque, 9), square_image(array, 9))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (torch.tensor([0.0, 200.0]), r"not 0 to 200 \(divide them by 255\)"),
        (torch.tensor([-1.0, 1.0]), "not -1 to 1$"),
        (torch.tensor([0.0, float("nan")]), "not nan to nan"),
        (torch.tensor([0, 256]), "not 0 to 256"),
        (torch.tensor([-1, 5], dtype=torch.int8), "not -1 to 5"),
    ],
)
def test_values_out_of_range_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        in_range(values)


def test_rounding_errors_of_floats_are_allowed():
    assert in_range(torch.tensor([-1e-6, 1 + 1e-6], dtype=torch.float64)).dtype == torch.float32
    assert in_range(torch.tensor([0, 255], dtype=torch.int64)).dtype == torch.uint8


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (None, "must be a path, a PIL image"),
        (b"bytes", "must be a path, a PIL image"),
        (np.zeros((3, 9, 9), np.uint8), r"torch\.from_numpy\(array\)"),
        (torch.zeros(9, 9, 3), "a tensor must be"),
        (torch.zeros(1, 3, 9, 9), "a tensor must be"),
        (torch.zeros(3, 0, 9), "a tensor must be"),
        (np.zeros((9, 9), bool), "not bool"),
        (np.array([["a"]]), "not <U1"),
        (torch.zeros(9, 9, dtype=torch.bool), "not bool"),
    ],
)
def test_what_is_no_image_is_refused_in_one_line(image, words):
    with pytest.raises((TypeError, ValueError), match=words) as error:
        square_image(image, 9)
    assert "\n" not in str(error.value)


def test_files_without_an_image_are_named(tmp_path: Path):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 60, 3), np.uint8))
    with pytest.raises(FileNotFoundError, match=r"missing\.jpg"):
        square_image(tmp_path / "missing.jpg", 9)
    for name, content, words in (
        ("empty.jpg", b"", "empty file"),
        ("text.jpg", b"no image", "not an image"),
        ("cut.png", _file(noise)[:500], ""),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}: {words}"):
            square_image(tmp_path / name, 9)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\n%%EOF\n"


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch):
    """A program gs that leaves a file where it was run."""
    marker, program = tmp_path / "gs was run", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch '{marker}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    return marker


@pytest.mark.parametrize("name", ["photo.png", "photo.jpg", "photo.tga"])
def test_no_file_reaches_ghostscript(tmp_path: Path, ghostscript: Path, caplog, name: str):
    """EPS under the name of a photograph is skipped as any other file that is no image."""
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / name).write_bytes(EPS)
    (folder / "good.png").write_bytes(_file(_picture()))

    config = DataConfig(name="image_folder", root=str(folder), cache=str(tmp_path / "cache"))
    dataset = load_dataset(config)
    assert (len(dataset.train), dataset.skipped) == (1, ((name, "not an image"),))
    assert f"{name}: not an image" in caplog.text
    with pytest.raises(ValueError, match=rf"{name}: not an image$"):
        square_image(folder / name, 32)
    assert not ghostscript.exists()


def test_no_pil_image_reaches_ghostscript(ghostscript: Path):
    with pytest.raises(ValueError, match="EPS is not read"):
        square_image(Image.open(io.BytesIO(EPS)), 32)
    assert not ghostscript.exists()


def test_every_suffix_is_that_of_a_format_that_is_read():
    for name, suffixes in FORMATS.items():
        if name in optional_formats.LIBRARIES:  # in test_optional_formats.py
            continue
        for suffix in suffixes:
            assert Image.registered_extensions()[suffix] == name
            assert decode_image(_file(_picture(), name), 32).shape == (3, 32, 32)


def test_deep_images_have_the_same_bits_in_strips(monkeypatch):
    """Whatever the height of the strips; the oracle converts the whole image in float64."""
    random = np.random.default_rng(0)
    for values, white in (
        (random.integers(0, 2**16, (70, 40), dtype=np.uint16), 65535),
        (random.integers(-9, 10**6, (70, 40)).astype(np.int32), None),
        (random.normal(0.5, 1, (70, 40)).astype(np.float32), None),
    ):
        scaled = values.clip(0) / np.float64(white or values.max()) * 255
        whole = Image.fromarray(scaled.round().astype(np.uint8))
        expected = np.asarray(ImageOps.fit(whole, (32, 32), Image.Resampling.BICUBIC))
        for pixels in (1, 120, 2**20):
            monkeypatch.setattr("orchestra_flwr.square_image.STRIP_PIXELS", pixels)
            image = square_image(Image.fromarray(values), 32)
            assert (image.numpy() == expected).all()


def _png(size: int, colour: int, depth: int) -> bytes:
    """A black image, written row by row."""
    row = bytes(1 + size * {0: 1, 6: 4}[colour] * depth // 8)
    packed = zlib.compressobj(1)
    rows = b"".join(packed.compress(row) for _ in range(size)) + packed.flush()
    header = struct.pack(">IIBBBBB", size, size, depth, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


DECODE = """
import resource, sys
from PIL import Image
from orchestra_flwr.square_image import square_image

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

Image.MAX_IMAGE_PIXELS, before = int(sys.argv[2]), peak()
try:
    square_image(sys.argv[1], 32)
finally:
    print(peak() - before)
"""


@pytest.mark.parametrize(
    ("side", "colour", "depth", "bytes_a_pixel"),
    [
        (3_000, 0, 16, 4),
        # more pixels than PIL takes without a warning
        *((10_000, *x) for x in [(0, 16, 4), (0, 8, 2), (6, 8, 9), (6, 16, 9)]),
    ],
)
@pytest.mark.slow
def test_the_memory_of_decoding_is_bounded(
    tmp_path: Path, side: int, colour: int, depth: int, bytes_a_pixel: int
):
    """Gray and RGBA; in float64 a 16-bit image took forty bytes a pixel."""
    file, pixels = tmp_path / "large.png", side**2
    file.write_bytes(_png(side, colour, depth))

    def decode(limit: int) -> tuple[int, str]:
        command = [sys.executable, "-c", DECODE, str(file), str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return int(done.stdout), done.stderr

    memory, error = decode(pixels)
    assert not error and memory < bytes_a_pixel * pixels
    if depth == 16 and colour == 0:  # more pixels than are allowed: nothing is decoded
        memory, error = decode(pixels - 1)
        assert f"too many pixels ({side} x {side})" in error and memory < pixels


def test_large_images_are_decoded_one_at_a_time(monkeypatch):
    monkeypatch.setattr("orchestra_flwr.square_image.LARGE_PIXELS", 2000)
    file, small = _file(_picture(50, 50)), _file(_picture(40, 40))
    with _ONE_LARGE_IMAGE, ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(decode_image, file, 32)
        assert pool.submit(decode_image, small, 32).result(60).shape == (3, 32, 32)
        assert not waiting.done()
        _ONE_LARGE_IMAGE.release()
        try:
            assert waiting.result(60).shape == (3, 32, 32)
        finally:
            _ONE_LARGE_IMAGE.acquire()
