"""A server's folder to try things on, and the command as a person calls it."""

import contextlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from PIL import Image, UnidentifiedImageError

from orchestra_flwr.deployment.keys import main
from orchestra_flwr.square_image import decode_image


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def contents():
    """Every path below a folder with its bytes."""

    def read(folder: Path) -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}

    return read


@pytest.fixture
def keys(tmp_path, monkeypatch, capsys):
    """Runs the command in an empty folder; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def refused(keys, contents, tmp_path):
    """Runs a command that must fail in one line and leave everything as it was."""

    def call(*arguments):
        before = contents(tmp_path)
        code, out, err = keys(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
        assert contents(tmp_path) == before
        return err

    return call


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template") / "security"
    hosts = "host=example.org,10.0.0.5,2001:db8::5"
    assert main(["server", f"folder={folder}", hosts, "client=site-1"]) == 0
    return folder


@pytest.fixture
def security(template, tmp_path):
    """A server's folder with one client's bundle."""
    return Path(shutil.copytree(template, tmp_path / "security"))


@pytest.fixture
def bundle(security):
    """The folder of the client site-1."""
    return security / "bundles" / "site-1"


@pytest.fixture
def new_line():
    """Makes the line of a new public key."""

    def make(name: str = "site-2") -> bytes:
        key = ec.generate_private_key(ec.SECP384R1()).public_key()
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return line + f" {name}\n".encode()

    return make


@pytest.fixture
def public(tmp_path, new_line):
    """The public key of a client, site-2, as it was brought to the server."""
    path = tmp_path / "client.pub"
    path.write_bytes(new_line())
    return path


WINDOW = 48  # bytes


def _windows(data: bytes) -> list[bytes]:
    """Three pieces of some bytes, each too long to be elsewhere by chance."""
    places = (0, len(data) // 3, 2 * len(data) // 3)
    pieces = [data[place : place + WINDOW] for place in places]
    return [piece for piece in pieces if len(set(piece)) > 8]


def _layouts(pixels: np.ndarray) -> list[bytes]:
    """(H, W, 3) uint8 as anybody might send it: both orders of axes, several types and ranges."""
    found = []
    for ordered in (pixels, pixels.transpose(2, 0, 1)):
        values = torch.from_numpy(ordered.copy()).float()
        found.append(np.ascontiguousarray(ordered).tobytes())
        for scaled in (values, values / 255, values / 127.5 - 1):
            for kind in (torch.float32, torch.float16, torch.bfloat16):
                found.append(scaled.to(kind).contiguous().view(torch.uint8).numpy().tobytes())
    return found


@pytest.fixture
def leaks():
    """What of a client's machine is in the bytes that it sent: images, names, paths."""

    def search(sent: bytes, root: Path, size: int, *private: str) -> list[str]:
        found = [word for word in private if len(word) > 3 and word.encode() in sent]
        for path in (root, *root.rglob("*")):
            words = {path.name, path.stem, *path.parts[1:]} - {"photos", "tmp"}
            found += sorted(word for word in words if len(word) > 3 and word.encode() in sent)
            if not path.is_file():
                continue
            pieces = _windows(path.read_bytes())
            with contextlib.suppress(UnidentifiedImageError):
                small = decode_image(path.read_bytes(), size).transpose(1, 2, 0)
                for pixels in (np.asarray(Image.open(path).convert("RGB")), small):
                    pieces += [piece for each in _layouts(pixels) for piece in _windows(each)]
            found += [f"bytes of {path.name}" for piece in pieces if piece in sent]
        return found

    return search
