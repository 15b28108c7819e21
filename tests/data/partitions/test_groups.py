"""Clients that are folders or lines of a table."""

import numpy as np
import pytest
import torch
from PIL import Image

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data import UNLABELLED, ImageSet, load_dataset, partition_by_name, try_partition

FILES = ("cat/mon/1.jpg", "cat/tue/1.jpg", "dog/mon/2.jpg", "dog/mon/3.jpg", "dog/wed/1.jpg")


def _images(files=FILES) -> ImageSet:
    pixels = torch.zeros(len(files), 3, 8, 8, dtype=torch.uint8)
    return ImageSet(pixels, torch.tensor([0, 0, 1, 1, 1]), ("cat", "dog"), tuple(files))


def _split(clients: int, images: ImageSet | None = None, **options) -> dict[str, list[int]]:
    config = PartitionConfig.model_validate({"name": "groups", **options})
    parts = partition_by_name(config, images or _images(), clients, 0)
    return {name: part.tolist() for name, part in parts.items()}


def _table(tmp_path, *lines: str) -> str:
    file = tmp_path / "table.csv"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_a_folder_is_a_client():
    assert _split(3) == {"mon": [0, 2, 3], "tue": [1], "wed": [4]}
    assert _split(2, level=2) == {"cat": [0, 1], "dog": [2, 3, 4]}


def test_a_table_says_who_has_what(tmp_path):
    lines = [f"{i % 2},{file},x" for i, file in enumerate((*FILES, "not/there.jpg"))]
    table = _table(tmp_path, "group,file,comment", *lines)
    assert _split(2, csv=table) == {"0": [0, 2, 4], "1": [1, 3]}


def test_a_table_may_write_accents_otherwise(tmp_path):
    files = tuple(file.replace("cat", "e\u0301") for file in FILES)
    lines = [f"{file.replace('cat', 'é')},{i % 2}" for i, file in enumerate(FILES)]
    assert _split(2, _images(files), csv=_table(tmp_path, "file,group", *lines))["0"] == [0, 2, 4]


def test_folders_may_begin_with_a_space(tmp_path):
    files = (" cat/mon/1.jpg", *FILES[1:])
    lines = [f"{file}, {i % 2} " for i, file in enumerate(files)]
    assert _split(2, _images(files), csv=_table(tmp_path, "file,group", *lines))["0"] == [0, 2, 4]


def test_files_of_an_image_folder(tmp_path):
    for position, file in enumerate(FILES):
        path = tmp_path / "photos" / "train" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (position, 0, 0)).save(path.with_suffix(".png"))
    (tmp_path / "photos" / "train" / "cat" / "mon" / "0.png").write_bytes(b"no image")
    data = DataConfig(
        name="image_folder", root=str(tmp_path / "photos"), cache=str(tmp_path / "cache")
    )
    for _ in ("decoded", "from the cache"):
        train = load_dataset(data).train
        assert train.files[0] == "train/cat/mon/1.png"  # the broken one is left out
        parts = _split(3, train)
        assert {n: train.images[p, 0, 0, 0].tolist() for n, p in parts.items()} == {
            "mon": [0, 2, 3], "tue": [1], "wed": [4],
        }  # fmt: skip
    limited = load_dataset(data.model_copy(update={"train_limit": 2})).train
    assert len(limited.files) == 2


def test_names_that_are_no_text_come_back_from_the_cache(tmp_path):
    folder = tmp_path / "photos" / "caf\udce9\nx"
    folder.mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(folder / "1.png")
    (tmp_path / "photos" / "b").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "photos" / "b" / "1.png")
    data = DataConfig(name="image_folder", root=str(folder.parent), cache=str(tmp_path / "cache"))
    first, again = load_dataset(data).train.files, load_dataset(data).train.files
    assert first == again == ("b/1.png", "caf\udce9\nx/1.png")
    with pytest.raises(ConfigError, match=r"^partition=groups: .* cannot be a client's name"):
        _split(2, load_dataset(data).train)


def _line(clients: int = 3, images: ImageSet | None = None, **options) -> str:
    with pytest.raises(ConfigError) as error:
        _split(clients, images, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_another_number_of_clients_is_refused():
    assert _line(5) == (
        "federation.clients=5: partition=groups has one client for each of the 3 groups"
    )


def test_images_that_are_no_files_are_refused():
    images = ImageSet(_images().images)
    assert _line(3, images) == "partition=groups: needs images in files; use data=image_folder"


def test_an_image_that_lies_too_high_is_named():
    assert _line(level=3) == (
        "partition.level=3: cat/mon/1.jpg lies in 2 folders below data.root; "
        "every image must lie in 3 or more"
    )


HEAD = "its first line must name the columns file and group"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["name,group"], f": has no column file; {HEAD}, and names name, group"),
        ([], f": has no column file; {HEAD}, and names none"),
        (["file,group", f"{FILES[0]},"], ": line 2 has no file or no group"),
        (["file,group", f"{FILES[0]},a"], ": has no line for 4 of 5 images, such as cat/tue/1.jpg"),
        (
            ["file,group", f"{FILES[0]},a", f"{FILES[0]},b"],
            f": line 3: {FILES[0]} has a second group",
        ),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, lines, problem):
    table = _table(tmp_path, *lines)
    assert _line(csv=table) == f"partition.csv={table}{problem}"


def test_a_table_that_cannot_be_read_is_refused(tmp_path):
    assert _line(csv=str(tmp_path / "x")).endswith("x: cannot be read (No such file or directory)")
    file = tmp_path / "binary.csv"
    file.write_bytes(np.arange(256, dtype=np.uint8).tobytes())
    assert ": cannot be read (" in _line(csv=str(file))


@pytest.mark.parametrize("name", ["..", "a/b"])
def test_names_that_are_no_folders_are_refused(tmp_path, name):
    table = _table(tmp_path, "file,group", *(f"{file},{name}" for file in FILES))
    assert "cannot be a client's name, which must be a valid name of a folder" in _line(csv=table)


def test_a_group_of_images_without_a_class_counts_before_they_are_decoded():
    images = _images()
    labels = torch.tensor([0, 0, 1, 1, UNLABELLED])
    images = ImageSet(images.images[..., :0, :0], labels, images.classes, images.files)
    try_partition(PartitionConfig(name="groups"), images, 3, 0)
    with pytest.raises(ConfigError, match="one client for each of the 3 groups"):
        try_partition(PartitionConfig(name="groups"), images, 2, 0)
