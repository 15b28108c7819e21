import io
import logging
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data.image_files import decoding
from orchestra_flwr.data.image_files.decoding import any_readable, decode_files


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
    assert warning.startswith("skipped 6 image files: empty.jpg: ")
    assert warning.endswith("; and 1 more")


def test_broken_files_take_no_second_copy_of_the_images(monkeypatch):
    made = []
    empty = np.empty

    def recorded(*args, **kwargs):
        made.append(empty(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(decoding.np, "empty", recorded)
    colours = [(60 * position, 7, 9) for position in range(4)]
    files = {str(c): _file(Image.new("RGB", (8, 8), c)) for c in colours}
    files = {"broken first": b"", **files, "broken last": b""}
    decoded = decode_files(list(files), files.__getitem__, 8)
    assert decoded.good == [1, 2, 3, 4]
    assert decoded.images[:, :, 5, 3].tolist() == [list(colour) for colour in colours]
    (images,) = [array for array in made if array.shape == (6, 3, 8, 8)]
    assert np.shares_memory(decoded.images.numpy(), images)


def test_more_than_memory_can_hold_is_refused_before_a_file_is_read():
    with pytest.raises(
        ConfigError, match=r"^data\.image_size=512: 100,000,000 images take 78,643 G"
    ):
        decode_files(range(10**8), lambda name: pytest.fail("was read"), 512)


def test_the_median_of_the_shorter_sides_is_known_unless_nothing_can_be_read():
    files = {f"{w}.png": _file(_picture(w, 60)) for w in (40, 50, 90)} | {"no.png": b"no image"}
    assert decode_files(list(files), files.__getitem__, 8).shorter_side == 50
    assert decode_files(["no.png"], files.__getitem__, 8).shorter_side is None


def test_order_is_that_of_the_names():
    shades = {f"{i}.png": _file(Image.new("L", (8, 8), i)) for i in range(200)}
    images = decode_files(list(shades), shades.__getitem__, 8).images

    assert images[:, 0, 0, 0].tolist() == list(range(200))


def test_what_was_not_read_is_told_from_what_is_no_image():
    content = {"a.png": _file(_picture()), "empty.png": b"no", "text.png": b"this is no image"}
    faults = {
        "empty.png": ValueError("empty file"),
        "forbidden.png": PermissionError(13, "Permission denied"),
        "disk.png": OSError(5, "Input/output error"),
        "damaged.png": zipfile.BadZipFile("Bad CRC-32"),
        "packed.png": zlib.error("Error -3"),
        "encrypted.png": RuntimeError("password required"),
        "great.png": MemoryError(),
    }

    def read(name: str) -> bytes:
        if name in faults:
            raise faults[name]
        return content[name]

    names = ["a.png", "text.png", *faults]
    decoded = decode_files(names, read, 8)
    assert [name for name, _ in decoded.broken] == names[1:]
    assert decoded.unread == tuple(faults)[1:]
    assert not any_readable(decoded.unread, names, read)
    content["disk.png"] = b"anything"
    del faults["disk.png"]
    assert any_readable(decoded.unread, names, read)
    assert not any_readable((), names, read)


def test_an_image_that_memory_did_not_suffice_for_may_be_read_later(monkeypatch):
    def exhausted(*_):
        raise MemoryError

    monkeypatch.setattr("orchestra_flwr.data.image_files.decoding.decode_image", exhausted)
    decoded = decode_files(["a.png"], lambda _: b"content", 8)
    assert (decoded.broken, decoded.unread) == ((("a.png", "MemoryError"),), ("a.png",))
