"""A saved encoder, folders of images that embed in a second, and a browser."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.data.image_files.archive import Archive
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder

COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (200, 40, 40)}


def write_image(path, colour, seed, size=24):
    noise = np.random.default_rng(seed).normal(0, 25, (size, size, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(path)


@pytest.fixture
def run(tmp_path):
    """A folder with an untrained encoder of 16 x 16 colour images."""
    folder = tmp_path / "run"
    folder.mkdir()
    torch.manual_seed(0)
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=3, image_size=16)
    save_encoder(folder / "encoder.safetensors", Encoder(spec))
    return folder


@pytest.fixture
def photos(tmp_path):
    """36 noisy images, twelve of each of three colours, in a folder for each colour."""
    folder = tmp_path / "photos"
    for row, (name, colour) in enumerate(COLOURS.items()):
        for number in range(12):
            write_image(folder / name / f"{number:02d}.png", colour, 100 * row + number)
    return folder


@pytest.fixture
def unreadable(monkeypatch):
    """In the block of `unreadable(name)` that file of a folder or zip may not be opened."""

    @contextmanager
    def block(forbidden):
        real = Archive.read

        def read(archive, name):
            if name == forbidden:
                raise PermissionError(13, "Permission denied")
            return real(archive, name)

        with monkeypatch.context() as patched:
            patched.setattr(Archive, "read", read)
            yield patched

    return block


@pytest.fixture
def opened_page(browser):
    """Opens a page in a browser; at the end there was no error and no request to a network."""
    errors, requests = [], []

    def opened(file, scheme="light"):
        size = {"width": 1440, "height": 900}
        page = browser.new_page(viewport=size, color_scheme=scheme)
        page.set_default_timeout(240_000)
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-ready]")
        return page

    yield opened
    assert errors == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
