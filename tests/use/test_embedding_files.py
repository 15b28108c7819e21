"""Embeddings on disk: what other tools read is what was written, and damage is noticed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from orchestra_flwr.files import MAX_JSON_BYTES
from orchestra_flwr.use.embedding_files import (
    Embeddings,
    add_near_duplicates,
    embedded_before,
    read_embeddings,
    write_embeddings,
)

EMBEDDINGS = Embeddings(
    ("a/ü 1.jpg", "b/2.jpg", "c,3.png"),
    torch.randn(3, 5),
    (("d.jpg", "empty file"), ("ü.jpg", "Permission denied")), ("ü.jpg",),
)  # fmt: skip


def written(folder, format, key="k"):
    return write_embeddings(
        folder, EMBEDDINGS, format=format, images="photos", encoder="encoder", key=key
    )


@pytest.mark.parametrize("format", ["safetensors", "npz", "parquet"])
def test_what_is_read_is_what_was_written(tmp_path, format):
    if format == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    path = written(tmp_path, format)
    assert path.name == f"embeddings.{format}"
    embeddings = read_embeddings(tmp_path, key="k", format=format)
    assert embeddings.paths == EMBEDDINGS.paths and embeddings.broken == EMBEDDINGS.broken
    assert embeddings.unread == EMBEDDINGS.unread
    assert torch.equal(embeddings.vectors, EMBEDDINGS.vectors)
    assert read_embeddings(tmp_path, key="another", format=format) is None
    other = "npz" if format != "npz" else "safetensors"
    assert read_embeddings(tmp_path, key="k", format=other) is None


def test_any_number_of_broken_files_is_read_again(tmp_path):
    broken = tuple((f"{number:0999}.jpg", "empty file") for number in range(17_000))
    many = replace(EMBEDDINGS, broken=broken, unread=())
    write_embeddings(tmp_path, many, format="npz", images="photos", encoder="encoder", key="k")
    add_near_duplicates(tmp_path, [["a/ü 1.jpg", "b/2.jpg"]])
    assert (tmp_path / "embeddings.json").stat().st_size > MAX_JSON_BYTES
    embeddings = read_embeddings(tmp_path, key="k", format="npz")
    assert embeddings is not None and embeddings.broken == broken
    assert embedded_before(tmp_path) == "photos"


def test_other_tools_read_them(tmp_path):
    with np.load(written(tmp_path, "npz")) as file:
        assert file["paths"].tolist() == list(EMBEDDINGS.paths)
        assert np.array_equal(file["embeddings"], EMBEDDINGS.vectors.numpy())
    with safe_open(written(tmp_path, "safetensors"), framework="np") as file:
        assert json.loads(file.metadata()["paths"]) == list(EMBEDDINGS.paths)
        assert np.array_equal(file.get_tensor("embeddings"), EMBEDDINGS.vectors.numpy())


def test_a_table_of_paths_and_lists(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    table = parquet.read_table(written(tmp_path, "parquet")).to_pylist()
    assert [row["path"] for row in table] == list(EMBEDDINGS.paths)
    assert np.allclose([row["embedding"] for row in table], EMBEDDINGS.vectors.numpy())


def test_of_another_encoder_or_other_images_nothing_stays_in_another_format(tmp_path):
    first, second = written(tmp_path, "npz"), written(tmp_path, "safetensors")
    assert first.is_file()  # two formats of the same
    third = written(tmp_path, "npz", key="another")
    assert third.is_file() and not second.exists()
    second, _ = (written(tmp_path, format, key="another") for format in ("safetensors", "npz"))
    written(tmp_path, "npz", key="a third")  # in the format that was written last
    assert not second.exists()


def test_a_damaged_file_is_not_used(tmp_path):
    path = written(tmp_path, "safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert read_embeddings(tmp_path, key="k", format="safetensors") is None


def test_files_that_an_earlier_version_left_out_are_tried_again(tmp_path):
    """Whether they were broken or could not be read is not known of them."""
    written(tmp_path, "npz")
    described = json.loads((tmp_path / "embeddings.json").read_text())
    del described["unread"]
    (tmp_path / "embeddings.json").write_text(json.dumps(described))
    assert read_embeddings(tmp_path, key="k", format="npz") is None
    (tmp_path / "embeddings.json").write_text(json.dumps(described | {"broken": []}))
    assert read_embeddings(tmp_path, key="k", format="npz") is not None
