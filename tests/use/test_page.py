"""The page: what it holds, in one file that opens no network address."""

import base64
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from orchestra_flwr.data.image_files.archive import Archive
from orchestra_flwr.use.embedding_files import Embeddings
from orchestra_flwr.use.image_embeddings import EmbeddedImages
from orchestra_flwr.use.page import TEMPLATE, render, write_page
from orchestra_flwr.use.similar import nearest_neighbours, outliers
from orchestra_flwr.use.use_config import PageConfig

CONFIG = {"write": True, "pictures": "inside", "limit": 5000, "clusters": 3, "seed": 0}


def page_of(photos, folder, vectors=None, **config):
    with Archive(photos) as archive:
        paths = tuple(file.name for file in archive.files())
        vectors = torch.randn(len(paths), 6) if vectors is None else vectors
        embeddings = Embeddings(paths, vectors, (("broken.jpg", "</script><b>"),))
        embedded = EmbeddedImages(archive, embeddings, {p: p for p in paths}, folder)
        page, _ = write_page(folder, embedded, PageConfig(**{**CONFIG, **config}), "My <photos>")
    text = page.read_text()
    data = re.search(r'id="data">(.*?)</script>', text, re.S)[1]
    return text, json.loads(data), embeddings


def unpacked(text, dtype):
    return np.frombuffer(base64.b64decode(text), dtype)


def test_it_holds_what_the_embeddings_say(photos, tmp_path):
    _, data, embeddings = page_of(photos, tmp_path)
    assert data["paths"] == list(embeddings.paths) and data["total"] == 36
    nearest = nearest_neighbours(embeddings.vectors, 12)
    neighbours = unpacked(data["neighbours"], "<u2").reshape(36, 12)
    assert np.array_equal(neighbours, nearest.indices.numpy())
    cosines = unpacked(data["cosines"], "<i2").reshape(36, 12) / 10_000
    np.testing.assert_allclose(cosines, nearest.cosines.numpy(), atol=1e-4)
    assert len(unpacked(data["positions"], "<u2")) == 72
    assert data["classNames"] == ["blue", "green", "red"]
    assert unpacked(data["classes"], "u1").tolist() == [0] * 12 + [1] * 12 + [2] * 12
    clusters = unpacked(data["clusters"], "u1")
    assert all(clusters[i] == c for c, typical in enumerate(data["typical"]) for i in typical)
    assert data["outliers"] == outliers(nearest)


@pytest.mark.slow  # a process that imports torch
def test_the_locale_decides_nothing():
    """Where text is not UTF-8 by default, as with LANG=en_US on older machines."""
    program = (
        "import sys; from orchestra_flwr.use.page import render;"
        "sys.stdout.buffer.write(render({'title': 'x'}).encode())"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program]
    made = subprocess.run(command, env=os.environ | plain, capture_output=True, check=True)
    assert made.stdout.decode() == render({"title": "x"})


def test_text_from_elsewhere_stays_text(photos, tmp_path):
    text, data, _ = page_of(photos, tmp_path)
    assert data["broken"] == [["broken.jpg", "</script><b>"]] and data["title"] == "My <photos>"
    assert "</script><b>" not in text and "<title>My &lt;photos&gt;</title>" in text
    assert text.count("</script>") == 2


def test_no_network_address(photos, tmp_path):
    text, _, _ = page_of(photos, tmp_path)
    assert not re.search(r"https?:|src=\"//|@import|url\(", text)
    assert "default-src 'none'" in text
    script = (TEMPLATE / "page.js").read_text()
    assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|innerHTML|eval\(", script)


def test_of_too_many_images_some_are_drawn(photos, tmp_path):
    _, data, embeddings = page_of(photos, tmp_path, limit=10)
    assert data["total"] == 36 and len(data["paths"]) == 10
    assert set(data["paths"]) < set(embeddings.paths)
    assert unpacked(data["neighbours"], "<u2").max() < 10
    assert data["paths"] == page_of(photos, tmp_path, limit=10)[1]["paths"]


def test_pictures_beside_the_page(photos, tmp_path):
    text, data, _ = page_of(photos, tmp_path, pictures="beside")
    assert data["sheets"] == ["pictures-0.webp"] and "base64" not in text.split('id="data"')[0]
    with Image.open(tmp_path / "pictures-0.webp") as sheet:
        assert sheet.width == 32 * data["size"] and sheet.format == "WEBP"


def test_pictures_of_an_earlier_page_go_and_no_others(photos, tmp_path):
    text, _, _ = page_of(photos, tmp_path, pictures="beside")
    page = tmp_path / "embeddings.html"
    page.write_text(text.replace('["pictures-0.webp"]', '["pictures-0.webp","pictures-1.webp"]'))
    for number in (1, 2):
        (tmp_path / f"pictures-{number}.webp").touch()
    page_of(photos, tmp_path, pictures="beside")
    left = [number for number in range(3) if (tmp_path / f"pictures-{number}.webp").exists()]
    assert left == [0, 2]
    page_of(photos, tmp_path)
    assert [path.name for path in tmp_path.glob("pictures-*")] == ["pictures-2.webp"]


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_images(photos, tmp_path, count):
    for file in sorted(photos.rglob("*.png"))[count:]:
        file.unlink()
    _, data, _ = page_of(photos, tmp_path)
    assert data["k"] == count - 1 and data["classNames"] == []


def test_copies_are_grouped(photos, tmp_path):
    vectors = torch.randn(36, 6)
    vectors[20] = vectors[4]
    assert page_of(photos, tmp_path, vectors)[1]["duplicates"] == [[4, 20]]
