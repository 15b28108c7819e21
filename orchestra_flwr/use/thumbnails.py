"""Small pictures of many images, side by side in a few WebP sheets."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from orchestra_flwr.data.image_files.decoding import decode_files
from orchestra_flwr.square_image import opened_image

STEP = 16  # WebP's blocks: at multiples of it no picture bleeds into the next one
MAX_SIDE = 128  # pixels
MIN_SIDE = 32
QUALITIES = (90, 75)  # WebP's; the better one where there is room
SAMPLE = 128  # images by which sizes are estimated
COLUMNS = 32
SHEET = COLUMNS**2  # pictures in a sheet
BUDGET = 2_000_000  # bytes for up to 2,000 images; if there are more, each gets a 2,000th of it


@dataclass(frozen=True)
class Thumbnails:
    """Pictures of n images: the i-th is in sheet i // 1024, row i % 1024 // 32, column i % 32.

    Attributes:
        size: height and width of a picture in pixels.
        sheets: WebP files.
    """

    size: int
    sheets: list[bytes]


def make_thumbnails(
    names: Sequence[str], read: Callable[[str], bytes], *, budget: bool
) -> Thumbnails:
    """Decodes images once more, in a size that suits people.

    Args:
        names: the files; the picture of one that cannot be read is black.
        read: gives a file's content.
        budget: whether the sheets of up to 2,000 images must stay below 2 MB together.
    """
    largest = min(MAX_SIDE, _source_size(names, read))
    sample = _decode(names[:: max(1, len(names) // SAMPLE)][:SAMPLE], read, largest)
    size, quality = largest, QUALITIES[0]
    if budget:
        size, quality = _fitting(sample, largest, BUDGET / min(2000, len(names)))
    sheets = [
        _webp(_decode(names[start : start + SHEET], read, size), quality)
        for start in range(0, len(names), SHEET)
    ]
    return Thumbnails(size, sheets)


def _source_size(names: Sequence[str], read: Callable[[str], bytes]) -> int:
    """The median shorter side of some images, rounded up to a step: more would show nothing new."""
    sides = []
    for name in names[:: max(1, len(names) // 32)]:
        try:
            with opened_image(read(name)) as image:
                sides.append(min(image.size))
        except Exception:  # noqa: S112  (decoders raise all kinds of errors for broken files)
            continue
    median = float(np.median(sides)) if sides else MAX_SIDE
    return max(MIN_SIDE, math.ceil(median / STEP) * STEP)


def _fitting(sample: NDArray[np.uint8], largest: int, bytes_each: float) -> tuple[int, int]:
    """The largest size, and then the best quality, at which a picture fits into `bytes_each`."""
    for size in range(largest, MIN_SIDE - 1, -STEP):
        scaled = [
            np.asarray(Image.fromarray(picture).resize((size, size), Image.Resampling.BICUBIC))
            for picture in sample
        ]
        for quality in QUALITIES:
            if len(_webp(np.stack(scaled), quality)) <= bytes_each * len(sample):
                return size, quality
    return MIN_SIDE, QUALITIES[-1]


def _decode(names: Sequence[str], read: Callable[[str], bytes], size: int) -> NDArray[np.uint8]:
    """(n, size, size, 3)."""
    decoded = decode_files(names, read, size)
    pictures = np.zeros((len(names), size, size, 3), dtype=np.uint8)
    pictures[decoded.good] = decoded.images.permute(0, 2, 3, 1).numpy()
    return pictures


def _webp(pictures: NDArray[np.uint8], quality: int) -> bytes:
    size = pictures.shape[1]
    rows = math.ceil(len(pictures) / COLUMNS)
    grid = np.zeros((rows * COLUMNS, size, size, 3), dtype=np.uint8)
    grid[: len(pictures)] = pictures
    sheet = grid.reshape(rows, COLUMNS, size, size, 3).swapaxes(1, 2)
    written = io.BytesIO()
    image = Image.fromarray(sheet.reshape(rows * size, COLUMNS * size, 3))
    image.save(written, "WEBP", quality=quality, method=4)
    return written.getvalue()
