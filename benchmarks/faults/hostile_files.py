"""Files from strangers: false images, and configurations that hold more than settings."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from faults.hostile_server import EVIL

SECRET = "SECRET_OF_THIS_MACHINE"  # noqa: S105 (the name of a variable)
POSTSCRIPT = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 16 16
%%EndComments
(ran) print
%%EOF
"""


def _png(width: int, height: int, bits: int = 8) -> bytes:
    """A grey picture of this size, of which nothing but the first rows is there."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    data = zlib.compress(bytes(1 << 20), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


# Files that come among a client's images: each is left out, and the run is as without it.
IMAGES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "PostScript as photo.png": ("photo.png", lambda: POSTSCRIPT),
    "PostScript as photo.jpg": ("photo.jpg", lambda: POSTSCRIPT),
    "a picture of 10^10 pixels": ("huge.png", lambda: _png(100_000, 100_000)),
    "a picture of 16 bits that breaks off": ("deep.png", lambda: _png(9_000, 9_000, 16)),
    "a name with escape sequences": ("\x1b[2Jx.png", lambda: b"no image"),
    "an empty file": ("empty.jpg", lambda: b""),
}


def stub_ghostscript(folder: Path, marker: Path) -> None:
    """A program `gs` that leaves the marker; the folder is to come first on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "gs"
    program.write_text(f"#!/bin/sh\necho ran > '{marker}'\nexit 1\n")
    program.chmod(0o755)


def _plugins(text: str) -> str:
    return text.replace("plugins: []", f"plugins: [{EVIL}]")


def _secret(text: str) -> str:
    return "\n".join(
        f"run_dir: ${{oc.env:{SECRET}}}" if line.startswith("run_dir:") else line
        for line in text.splitlines()
    )


def _bomb(text: str) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    return "\n".join([*lines, text])


# What a foreign run's config.yaml may hold: `resume=` refuses it in a line, with exit code 2.
RUNS: dict[str, Callable[[str], str]] = {
    "a run that names packages": _plugins,
    "a run that refers to the environment": _secret,
    "a run of aliases of aliases": _bomb,
}


def _named_package(encoder: dict) -> dict:
    return {**encoder, "plugins": [EVIL]}


def _huge(key: str) -> Callable[[dict], dict]:
    return lambda encoder: {**encoder, key: 10**9}


# What a foreign encoder.json may hold: `load_encoder` refuses it in a line.
ENCODERS: dict[str, Callable[[dict], dict]] = {
    "an encoder that names packages": _named_package,
    "an encoder of 10^9 pixels": _huge("image_size"),
    "an encoder of 10^9 channels": _huge("channels"),
}
LOAD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
from orchestra_flwr import load_encoder
try:
    load_encoder(sys.argv[1])
except Exception as error:
    print(f"refused: {type(error).__name__}: {error}")
"""


def change_encoder(folder: Path, which: str) -> None:
    """Writes another encoder.json into a copy of a run's encoder."""
    file = folder / "encoder.json"
    file.write_text(json.dumps(ENCODERS[which](json.loads(file.read_text()))))
