"""Sheets of pictures: each in its place, and all within their bytes."""

import io

import numpy as np
import pytest
from PIL import Image

from orchestra_flwr.use.thumbnails import make_thumbnails


def encoded(pixels, format="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def picture(thumbnails, i):
    sheet = np.asarray(Image.open(io.BytesIO(thumbnails.sheets[i // 1024])).convert("RGB"))
    size, within = thumbnails.size, i % 1024
    top, left = within // 32 * size, within % 32 * size
    return sheet[top : top + size, left : left + size].astype(float)


def test_every_picture_is_in_its_place():
    colours = {str(i): (i * 37 % 256, i * 91 % 256, i * 53 % 256) for i in range(1100)}
    files = {n: encoded(np.full((8, 8, 3), c, dtype=np.uint8)) for n, c in colours.items()}
    thumbnails = make_thumbnails([*files], files.__getitem__, budget=True)
    assert thumbnails.size == 32 and len(thumbnails.sheets) == 2
    for i in (0, 31, 32, 500, 1023, 1024, 1099):
        middle = picture(thumbnails, i)[8:-8, 8:-8].mean((0, 1))
        assert np.abs(middle - colours[str(i)]).max() < 12, i


@pytest.mark.parametrize(("budget", "sizes"), [(4_000_000, {128}), (50_000, {48, 64, 80, 96})])
@pytest.mark.slow
def test_all_pictures_stay_within_their_bytes(monkeypatch, budget, sizes):
    monkeypatch.setattr("orchestra_flwr.use.thumbnails.BUDGET", budget)
    generator = np.random.default_rng(0)
    blocks = [generator.integers(0, 255, (8, 10, 3)).astype(np.uint8) for _ in range(160)]
    names = [str(i) for i in range(160)]

    def read(name):  # 128 x 160 pixels
        return encoded(np.kron(blocks[int(name)], np.ones((16, 16, 1), dtype=np.uint8)))

    thumbnails = make_thumbnails(names, read, budget=True)
    assert sum(map(len, thumbnails.sheets)) <= 1.1 * budget
    assert thumbnails.size in sizes


def test_without_a_budget_they_are_as_large_as_their_source_allows():
    files = {"a": encoded(np.zeros((300, 400, 3), dtype=np.uint8))}
    assert make_thumbnails(["a"], files.__getitem__, budget=False).size == 128
    files = {"a": encoded(np.zeros((70, 90, 3), dtype=np.uint8))}
    assert make_thumbnails(["a"], files.__getitem__, budget=False).size == 80
