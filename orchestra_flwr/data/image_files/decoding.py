"""Decoding image files of any kind: to 8 bits, RGB, upright, square, all of one size."""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from orchestra_flwr.printable import printable

logger = logging.getLogger("orchestra_flwr.data")

MAX_BYTES = 2**28  # of a file; images that PIL allows are hardly ever as large
PROGRESS_SECONDS, LONGEST_SECONDS = 2.0, 60.0  # between two lines: from line to line it doubles
MAX_THREADS = 8  # more would only wait for Python's lock
CHUNK = 64  # files a task
NAMED_FILES = 5  # broken files that the warning names


@dataclass(frozen=True)
class Decoded:
    """The result of decoding a list of files.

    Attributes:
        images: uint8, (n, 3, size, size), of the n files that could be read, in the list's order.
        good: their n positions in the list.
        broken: (name, reason) of the others, as text that can be shown anywhere.
    """

    images: Tensor
    good: list[int]
    broken: tuple[tuple[str, str], ...]


def decode_image(data: bytes, size: int) -> NDArray[np.uint8]:
    """Decodes one image file: RGB, turned as its EXIF data says, its middle square, resized.

    Args:
        data: the file's content.
        size: height and width of the result in pixels.

    Returns:
        uint8, (3, size, size).

    Raises:
        Exception: whatever PIL raises for a broken file; ValueError for one of too many pixels.
    """
    with Image.open(io.BytesIO(data)) as image:
        if Image.MAX_IMAGE_PIXELS and image.width * image.height > Image.MAX_IMAGE_PIXELS:
            raise ValueError(f"too many pixels ({image.width} x {image.height})")
        image.draft(None, (2 * size, 2 * size))  # lets a large JPEG be decoded at half, ... size
        upright = ImageOps.exif_transpose(image)
        square = ImageOps.fit(_rgb(upright), (size, size), Image.Resampling.BICUBIC)
        return np.asarray(square).transpose(2, 0, 1)


def decode_files(names: Sequence[str], read: Callable[[str], bytes], size: int) -> Decoded:
    """Decodes many files with a pool of threads; broken ones are named in a warning and left out.

    Args:
        names: the files, in the order of the result.
        read: gives a file's content; called from several threads.
        size: height and width of the result in pixels.
    """
    images = np.empty((len(names), 3, size, size), dtype=np.uint8)

    def decode_one(position: int) -> str | None:
        try:
            images[position] = decode_image(read(names[position]), size)
        except Exception as error:  # decoders raise all kinds of errors for broken files
            return _reason(error)
        return None

    def decode_chunk(start: int) -> list[str | None]:
        return [decode_one(position) for position in range(start, min(start + CHUNK, len(names)))]

    started = reported = time.monotonic()
    wait = PROGRESS_SECONDS
    reasons: list[str | None] = []
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        try:
            for chunk in pool.map(decode_chunk, range(0, len(names), CHUNK)):
                reasons += chunk
                if time.monotonic() - reported > wait:
                    reported, wait = time.monotonic(), min(2 * wait, LONGEST_SECONDS)
                    logger.info("decoded %s of %s images", f"{len(reasons):,}", f"{len(names):,}")
        except BaseException:  # Ctrl-C must not wait for all other images
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if reported > started:
        logger.info("decoded all in %.0f s", time.monotonic() - started)
    good = [position for position, reason in enumerate(reasons) if reason is None]
    results = zip(names, reasons, strict=True)
    broken = tuple((printable(name), why) for name, why in results if why is not None)
    _warn(broken, len(names))
    return Decoded(torch.from_numpy(images[good] if broken else images), good, broken)


def check_size(count: int) -> None:
    """Refuses a file of `count` bytes that cannot hold an image.

    Raises:
        ValueError: it is empty, or so large that reading it would be a danger.
    """
    if count == 0:
        raise ValueError("empty file")
    if count > MAX_BYTES:
        raise ValueError(f"too large for an image ({count:,} bytes)")


def _rgb(image: Image.Image) -> Image.Image:
    """Converts to RGB; values of more than 8 bits are scaled down, where PIL would clip them."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.nan_to_num(np.asarray(image, dtype=np.float64))
        highest = 65535.0 if image.mode.startswith("I") else 1.0
        scaled = values.clip(0) / max(highest, values.max()) * 255
        image = Image.fromarray(scaled.round().astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # PIL warns about a palette with transparency in bytes
    return image.convert("RGB")


def _reason(error: Exception) -> str:
    text = printable(" ".join(str(error).split())) or type(error).__name__
    return "not an image" if text.startswith("cannot identify image file") else text


def _warn(broken: Sequence[tuple[str, str]], count: int) -> None:
    if broken:
        named = "; ".join(f"{name}: {reason}" for name, reason in broken[:NAMED_FILES])
        more = f"; and {len(broken) - NAMED_FILES} more" if len(broken) > NAMED_FILES else ""
        logger.warning("skipped %d of %d image files: %s%s", len(broken), count, named, more)
