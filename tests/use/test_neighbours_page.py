"""The page of neighbours."""

import io
import re
from types import SimpleNamespace

import torch
from PIL import Image

from orchestra_flwr.use.neighbours_page import SIDE, write_neighbours_page
from orchestra_flwr.use.similar import nearest_neighbours
from orchestra_flwr.use.thumbnails import COLUMNS

STYLE = re.compile(r"background-size:(\d+)px auto;background-position:-(\d+)px -(\d+)px")


def test_no_picture_shows_the_edge_of_another(tmp_path):
    """Browsers smooth what they scale: an edge has colours of the picture beside it."""
    neighbours, written = nearest_neighbours(torch.randn(70, 4), 10), io.BytesIO()
    Image.new("RGB", (32, 32)).save(written, "PNG")
    comparison = SimpleNamespace(neighbours=(neighbours, neighbours), verdict="")
    file = tmp_path / "comparison.html"
    write_neighbours_page(
        file, comparison, [f"{n}.png" for n in range(70)], lambda _: written.getvalue(),
        labels=None, queries=70, seed=0,
    )  # fmt: skip
    squares = [tuple(map(int, square)) for square in STYLE.findall(file.read_text())]
    assert len({(x, y) for _, x, y in squares}) == 70
    for wide, x, y in squares:
        cell = wide // COLUMNS
        assert 1 <= x % cell < x % cell + SIDE < cell and 1 <= y % cell < y % cell + SIDE < cell
