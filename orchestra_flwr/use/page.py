"""`embeddings.html`: one page, which needs no network, for looking at all images."""

import base64
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_flwr.files import write_atomically
from orchestra_flwr.seeding import drawn
from orchestra_flwr.use.image_embeddings import EmbeddedImages
from orchestra_flwr.use.image_map import Clusters, cluster_images, place_images
from orchestra_flwr.use.similar import Neighbours, near_duplicates, nearest_neighbours, outliers
from orchestra_flwr.use.thumbnails import COLUMNS, SHEET, Thumbnails, make_thumbnails
from orchestra_flwr.use.use_config import PageConfig

NAME = "embeddings.html"
NEIGHBOURS = 12  # of each image on the page
TYPICAL = 18  # images that show a cluster
OUTLIERS = 200  # at most
GROUPS = 100  # of near-duplicates
MAX_CLASSES = 60  # folders that count as classes
POSITIONS = 65_535  # steps of a position on the map, along each axis
TEMPLATE = Path(__file__).with_name("page_template")


def write_page(
    folder: Path, embedded: EmbeddedImages, config: PageConfig, title: str
) -> tuple[Path, list[list[str]]]:
    """Writes or replaces the page and, with `pictures=beside`, its pictures.

    Args:
        folder: where.
        embedded: the images and their embeddings.
        config: the numbers of images and clusters, and where the pictures are.
        title: what the images are called.

    Returns:
        The page's file, and the paths of all groups of near-duplicates among its images.

    Raises:
        OSError: a file cannot be written.
    """
    embeddings = embedded.embeddings
    chosen = drawn(len(embeddings.paths), config.limit, config.seed, "page")
    paths = [embeddings.paths[position] for position in chosen]
    vectors = embeddings.vectors[chosen]
    names = [embedded.names[path] for path in paths]
    inside = config.pictures == "inside"
    thumbnails = make_thumbnails(names, embedded.archive.read, budget=inside)
    neighbours = nearest_neighbours(vectors, NEIGHBOURS)
    duplicates = near_duplicates(neighbours)
    data = {
        "title": title,
        "total": len(embeddings.paths),
        "broken": [list(pair) for pair in embeddings.broken],
        "paths": paths,
        **_thumbnail_data(folder, thumbnails, inside),
        "positions": _packed((place_images(vectors, config.seed) * POSITIONS).round(), "<u2"),
        **_cluster_data(cluster_images(vectors, config.clusters, config.seed)),
        **_similarity_data(neighbours),
        "duplicates": duplicates[:GROUPS],
        **_class_data(paths),
    }
    path = folder / NAME
    earlier = _sheets_beside(path)
    write_atomically(path, render(data).encode())
    for name in earlier - {*data["sheets"]}:
        (folder / name).unlink(missing_ok=True)
    return path, [[paths[position] for position in group] for group in duplicates]


def render(data: dict[str, Any]) -> str:
    """The page: the template with style, script and data in their places."""
    parts = {
        "<!-- title -->": escape(data["title"]),
        "/* style */": (TEMPLATE / "page.css").read_text("utf-8"),
        "/* script */": (TEMPLATE / "page.js").read_text("utf-8"),
        # "</script>" in the name of a file must not end the data.
        "<!-- data -->": json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace(
            "<", "\\u003c"
        ),
    }
    page = (TEMPLATE / "page.html").read_text("utf-8")
    for place, content in parts.items():
        page = page.replace(place, content, 1)
    return page


def _sheets_beside(page: Path) -> set[str]:
    """The pictures beside an earlier page; none if there was no such page."""
    text = page.read_text("utf-8", errors="replace") if page.is_file() else ""
    sheets = re.search(r'"sheets":\["pictures-[^]]*]', text)
    return set(re.findall(r"pictures-\d+\.webp", sheets[0])) if sheets else set()


def _thumbnail_data(folder: Path, thumbnails: Thumbnails, inside: bool) -> dict[str, Any]:
    sources = []
    for number, sheet in enumerate(thumbnails.sheets):
        if inside:
            sources.append("data:image/webp;base64," + base64.b64encode(sheet).decode())
        else:
            name = f"pictures-{number}.webp"
            write_atomically(folder / name, sheet)
            sources.append(name)
    return {"sheets": sources, "size": thumbnails.size, "columns": COLUMNS, "perSheet": SHEET}


def _cluster_data(clusters: Clusters) -> dict[str, Any]:
    return {
        "clusters": _packed(clusters.labels, "u1"),
        "typical": [members[:TYPICAL].tolist() for members in clusters.typical],
    }


def _similarity_data(neighbours: Neighbours) -> dict[str, Any]:
    k = neighbours.indices.shape[1]
    return {
        "k": k,
        "neighbours": _packed(neighbours.indices.numpy(), "<u2"),
        "cosines": _packed((neighbours.cosines.numpy() * 10_000).round(), "<i2"),
        "outliers": outliers(neighbours)[:OUTLIERS],
    }


def _class_data(paths: Sequence[str]) -> dict[str, Any]:
    """The folders that hold the images, if there are few, with two images each on average."""
    folders = [path.rpartition("/")[0].rpartition("/")[2] for path in paths]
    names = sorted({name for name in folders if name})
    if "" in folders or not 2 <= len(names) <= min(MAX_CLASSES, len(paths) // 2):
        return {"classNames": [], "classes": ""}
    index = {name: position for position, name in enumerate(names)}
    return {"classNames": names, "classes": _packed([index[name] for name in folders], "u1")}


def _packed(values: Any, dtype: str) -> str:
    """Numbers of a type, row by row, in base64."""
    return base64.b64encode(np.asarray(values).astype(dtype).tobytes()).decode()
