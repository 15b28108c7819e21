"""Whether the bytes that a client sent hold anything of its machine: images, names, paths."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from orchestra_flwr.square_image import decode_image

WINDOW = 48  # bytes


def leaks(sent: bytes, root: Path, size: int, *private: str) -> list[str]:
    """What is found of a client's folder of images.

    Args:
        sent: all bytes.
        root: the folder; its name and those of what is in it must not be sent either.
        size: of the images that the client trains on, in pixels.
        private: other texts that must not be sent.
    """
    problems = [word for word in private if len(word) > 3 and word.encode() in sent]
    for path in (root, *root.rglob("*")):
        words = {path.name, path.stem, *path.parts[1:]} - {"photos", "tmp"}
        problems += sorted(word for word in words if len(word) > 3 and word.encode() in sent)
        if not path.is_file():
            continue
        pieces = _windows(path.read_bytes())
        with contextlib.suppress(UnidentifiedImageError, OSError, ValueError):
            small = decode_image(path.read_bytes(), size).transpose(1, 2, 0)
            for pixels in (np.asarray(Image.open(path).convert("RGB")), small):
                pieces += [piece for layout in _layouts(pixels) for piece in _windows(layout)]
        problems += [f"bytes of {path.name}" for piece in pieces if piece in sent]
    return problems


def _windows(data: bytes) -> list[bytes]:
    """Three pieces of some bytes, each too long to be elsewhere by chance."""
    places = (0, len(data) // 3, 2 * len(data) // 3)
    pieces = [data[place : place + WINDOW] for place in places]
    return [piece for piece in pieces if len(set(piece)) > 8]


def _layouts(pixels: np.ndarray) -> list[bytes]:
    """(H, W, 3) uint8 as anybody might send it: both orders of axes, several types and ranges."""
    layouts = []
    for ordered in (pixels, pixels.transpose(2, 0, 1)):
        values = torch.from_numpy(ordered.copy()).float()
        layouts.append(np.ascontiguousarray(ordered).tobytes())
        for scaled in (values, values / 255, values / 127.5 - 1):
            for kind in (torch.float32, torch.float16, torch.bfloat16):
                layouts.append(scaled.to(kind).contiguous().view(torch.uint8).numpy().tobytes())
    return layouts
