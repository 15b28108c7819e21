"""Data sets as the library `datasets` saves them, made here: nothing is asked of the hub."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from orchestra_flwr.cli import main
from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data import UNLABELLED, load_dataset, partition_by_name
from orchestra_flwr.data.any_dataset import as_dataset
from orchestra_flwr.data.sources import huggingface

pyarrow = pytest.importorskip("pyarrow")
datasets = pytest.importorskip("datasets", reason="needs the extra huggingface")
parquet = pytest.importorskip("pyarrow.parquet")

CLASSES = ["cat", "dog", "eel"]


def picture(value: int, size=(12, 12), mode="RGB") -> Image.Image:
    return Image.new(mode, size, value if mode == "L" else (value, value, value))


def split(count: int, first: int = 0, **columns):
    """Plain images of different grey levels; class i % 3."""
    features = datasets.Features({
        "img": datasets.Image(),
        "kind": datasets.ClassLabel(names=CLASSES),
        **{name: datasets.Value("string") for name in columns},
    })  # fmt: skip
    values = {
        "img": [picture(first + i, mode="L" if i % 2 else "RGB") for i in range(count)],
        "kind": [i % 3 for i in range(count)],
        **columns,
    }
    return datasets.Dataset.from_dict(values, features=features)


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)

    def make(dataset, **options):
        values = {"name": "huggingface", "image_size": 8, "cache": str(tmp_path / "cache")}
        named = dataset if dataset is None else str(dataset)
        return DataConfig.model_validate({**values, "dataset": named, **options})

    return make


@pytest.fixture
def saved(tmp_path):
    def save(**splits):
        folder = tmp_path / "saved" / "grey"
        datasets.DatasetDict(splits).save_to_disk(folder)
        return folder

    return save


def test_a_saved_data_set_with_its_classes(config, saved):
    folder = saved(train=split(9), test=split(6, first=100))
    made = config(folder)
    dataset = load_dataset(made)
    assert made.label == "huggingface-grey"
    assert dataset.train.images.shape == (9, 3, 8, 8) and dataset.test.images.shape == (6, 3, 8, 8)
    assert dataset.train.classes == dataset.test.classes == tuple(CLASSES)
    assert dataset.train.labels.tolist() == [0, 1, 2] * 3
    assert dataset.train.images[:, 0, 0, 0].tolist() == list(range(9))
    assert dataset.test.images[:, 2, 7, 7].tolist() == list(range(100, 106))
    again = load_dataset(made)  # from the cache
    assert torch.equal(again.train.images, dataset.train.images)


def test_the_size_before_resizing_is_known(config, saved):
    assert load_dataset(config(saved(train=split(4)))).shorter_side == 12


def test_limits_choose_before_anything_is_decoded(config, saved):
    folder = saved(train=split(30), test=split(12))
    dataset = load_dataset(config(folder, train_limit=6, test_limit=3))
    assert dataset.train.labels.bincount().tolist() == [2, 2, 2]
    assert dataset.test.labels.bincount().tolist() == [1, 1, 1]


def test_a_folder_of_images(config, tmp_path):
    for part, count in (("train", 4), ("test", 2)):
        for number, name in enumerate(("a", "b")):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                picture(40 * number + i).save(folder / f"{i}.png")
    dataset = load_dataset(config(tmp_path / "photos"))
    assert dataset.train.classes == ("a", "b") and len(dataset.train) == 8
    assert sorted(dataset.test.images[:, 0, 0, 0].tolist()) == [0, 1, 40, 41]


def test_an_image_that_could_not_be_read_is_tried_again(config, saved, monkeypatch):
    made = config(saved(train=split(9), test=split(6, first=100)))
    real = datasets.Dataset.__getitem__

    def damaged(rows, key):
        if (len(rows), key) in ((9, 2), (6, 3)):
            raise OSError(5, "Input/output error")
        return real(rows, key)

    with monkeypatch.context() as patched:
        patched.setattr(datasets.Dataset, "__getitem__", damaged)
        for _ in range(2):  # decoded, and from the cache
            dataset = load_dataset(made)
            assert (len(dataset.train), len(dataset.test)) == (8, 5)
            assert dataset.unread == ("train/2", "test/3")
    dataset = load_dataset(made)
    assert (len(dataset.train), len(dataset.test), dataset.unread) == (9, 6, ())


def test_each_writer_is_a_client(config, saved):
    writers = ["ann", "bob", "ann", "cy", "bob", "ann"]
    folder = saved(train=split(6, writer=writers))
    dataset = load_dataset(config(folder, group="writer"))
    assert dataset.test is None
    parts = partition_by_name(PartitionConfig(name="groups"), dataset.train, 3, 0)
    assert {name: part.tolist() for name, part in parts.items()} == {
        "ann": [0, 2, 5],
        "bob": [1, 4],
        "cy": [3],
    }


@pytest.mark.parametrize("kind", [datasets.Value("string"), datasets.ClassLabel(names=["ann"])])
def test_images_without_an_owner_are_counted(config, saved, caplog, kind):
    owners = ["ann", None, "ann", None]
    if isinstance(kind, datasets.ClassLabel):
        owners = [0, -1, 0, None]
    images = split(4).add_column("writer", owners, feature=kind)
    train = load_dataset(config(saved(train=images), group="writer", label="kind")).train
    assert [file.partition("/")[0] for file in train.files] == ["ann", "None", "ann", "None"]
    assert "2 of 4 images have none; together they count as a group" in caplog.text


def test_groups_with_a_slash_are_no_folders_in_folders(config, saved):
    cameras = ["a/cam", "b/cam", "a/cam", "a//cam", "a%2Fcam", "50%/"]
    folder = saved(train=split(6, camera=cameras))
    dataset = load_dataset(config(folder, group="camera"))
    parts = partition_by_name(PartitionConfig(name="groups"), dataset.train, 5, 0)
    assert {name: part.tolist() for name, part in parts.items()} == {
        "a%2Fcam": [0, 2],
        "b%2Fcam": [1],
        "a%2F%2Fcam": [3],
        "a%252Fcam": [4],
        "50%25%2F": [5],
    }


def test_classes_that_are_words(config, saved):
    folder = saved(train=split(4, breed=["x", "z", "y", "x"]), test=split(2, breed=["z", "x"]))
    dataset = load_dataset(config(folder, label="breed"))
    assert dataset.train.classes == ("x", "y", "z")
    assert dataset.train.labels.tolist() == [0, 2, 1, 0] and dataset.test.labels.tolist() == [2, 0]


def test_hidden_labels_are_none(config, saved):
    hidden = split(3).map(lambda row: {"kind": -1})
    dataset = load_dataset(config(saved(train=split(6), test=hidden)))
    assert dataset.train.labels is not None and dataset.test is None


def test_a_missing_word_is_no_class(config, saved):
    breed = ["x", None, "y", "x"]
    folder = saved(train=split(4, breed=breed), test=split(2, breed=["y", "x"]))
    dataset = load_dataset(config(folder, label="breed"))
    assert dataset.train.labels.tolist() == [0, UNLABELLED, 1, 0]
    assert dataset.test.labels.tolist() == [1, 0]
    folder = saved(train=split(4, breed=["x", "z", "y", "x"]), test=split(2, breed=[None, "x"]))
    dataset = load_dataset(config(folder, label="breed"))
    assert dataset.train.classes == ("x", "y", "z") and dataset.test.labels.tolist() == [0]


def test_an_empty_text_is_no_class(config, saved):
    folder = saved(train=split(4, breed=["x", "", "y", " "]), test=split(2, breed=["", "y"]))
    dataset = load_dataset(config(folder, label="breed"))
    assert dataset.train.classes == ("x", "y") and dataset.test.labels.tolist() == [1]
    assert dataset.train.labels.tolist() == [0, UNLABELLED, 1, UNLABELLED]


def test_a_whole_number_below_zero_is_no_class(config, saved):
    """As in columns that name their classes; a text "-1" is one."""

    def numbered(kinds):
        rows = split(len(kinds)).remove_columns("kind")
        return rows.add_column("kind", kinds)

    kind = {"label": "kind"}
    dataset = load_dataset(config(saved(train=numbered([3, 5, 3]), test=numbered([-1, 5])), **kind))
    assert dataset.train.classes == ("3", "5") and dataset.test.labels.tolist() == [1]
    dataset = load_dataset(config(saved(train=numbered([3, -1])), **kind))
    assert dataset.train.labels.tolist() == [0, UNLABELLED] and dataset.train.classes == ("3",)
    dataset = load_dataset(config(saved(train=numbered(["3", "-1"])), **kind))
    assert dataset.train.classes == ("-1", "3") and dataset.train.labels.tolist() == [1, 0]


def test_broken_images_are_skipped_by_name(config, tmp_path, caplog):
    buffer = io.BytesIO()
    picture(7).save(buffer, "png")
    good, broken = buffer.getvalue(), b"no image"
    rows = {"image": [{"bytes": content, "path": None} for content in (good, broken, good)]}
    features = datasets.Features({"image": datasets.Image(decode=False)})
    folder = tmp_path / "one"
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(folder)
    dataset = load_dataset(config(folder))
    assert len(dataset.train) == 2 and dataset.train.labels is None
    assert dataset.skipped == (("train/1", "not an image"),)


def test_a_device_that_a_row_names_is_not_read(config, tmp_path):
    """Reading some would never end: /dev/zero, a pipe."""
    picture(9).save(tmp_path / "good.png")
    paths = [str(tmp_path / "good.png"), "/dev/null"]
    table = pyarrow.table({"image": [{"bytes": None, "path": path} for path in paths]})
    (tmp_path / "rows").mkdir()
    parquet.write_table(table, tmp_path / "rows" / "train.parquet")
    dataset = load_dataset(config(tmp_path / "rows", image="image"))
    assert dataset.skipped == (("train/1", "not a regular file"),)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"train": "training"}, "data.train=training: must be one of train, test"),
        ({"test": "val"}, "data.test=val: must be one of train, test"),
        ({"image": "pixels"}, "data.image=pixels: must be one of img, kind"),
        ({"image": "kind"}, "data.image=kind: holds no images ("),
        ({"label": "class"}, "data.label=class: must be one of img, kind"),
        ({"group": "writer"}, "data.group=writer: must be one of img, kind"),
        ({"dataset": "missing/nowhere"}, "data.dataset=missing/nowhere: cannot be read ("),
        ({"dataset": None}, "data.dataset must name a data set"),
    ],
)
def test_what_is_not_there_is_one_line(config, saved, options, says):
    folder = saved(train=split(3), test=split(3))
    with pytest.raises(ConfigError) as error:
        load_dataset(config(**{"dataset": folder, **options}))
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


def test_of_several_columns_one_must_be_named(config, tmp_path):
    features = datasets.Features({
        "img": datasets.Image(),
        "fine": datasets.ClassLabel(names=CLASSES),
        "coarse": datasets.ClassLabel(names=["pet", "fish"]),
    })  # fmt: skip
    rows = {"img": [picture(1)] * 2, "fine": [0, 2], "coarse": [0, 1]}
    folder = tmp_path / "two"
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(folder)
    with pytest.raises(ConfigError, match=r"^data\.label: must be given, .*: fine, coarse$"):
        load_dataset(config(folder))
    dataset = load_dataset(config(folder, label="coarse"))
    assert dataset.train.classes == ("pet", "fish")
    assert np.array_equal(dataset.train.labels, [0, 1])


def saved_with(folder, **columns):
    """Four images and columns of plain texts or numbers, saved."""
    rows = {"image": [picture(i) for i in range(4)], **columns}
    saved = datasets.Dataset.from_dict(rows)
    saved.cast_column("image", datasets.Image()).save_to_disk(folder)
    return folder


@pytest.mark.parametrize(
    ("columns", "classes"),
    [
        ({"label": ["cat", "dog", "cat", "eel"], "fine": [3, 2, 1, 0]}, ("cat", "dog", "eel")),
        ({"fine": [3, 2, 1, 0], "target": [5, 6, 5, 7]}, ("5", "6", "7")),
        ({"owner": ["x", "y", "z", "z"], "label_id": [0, 1, 1, 0]}, ("0", "1")),
        ({"fine": [3, 2, 1, 0]}, ()),
    ],
)
def test_a_column_of_labels_need_not_be_declared(config, tmp_path, columns, classes):
    """As in the data sets of `simulate`."""
    folder = saved_with(tmp_path / "plain", **columns)
    assert load_dataset(config(folder)).train.classes == classes
    assert as_dataset(datasets.load_from_disk(folder), "mine", 8).train.classes == classes


def test_neither_owners_nor_masks_are_labels(config, tmp_path):
    features = datasets.Features({
        "image": datasets.Image(),
        "label": datasets.Image(),
        "label_owner": datasets.Value("string"),
    })  # fmt: skip
    rows = {"image": [picture(1)], "label": [picture(0)], "label_owner": ["x"]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "masks")
    made = config(tmp_path / "masks", image="image", group="label_owner")
    assert load_dataset(made).train.labels is None


def test_images_without_a_column_of_labels_cannot_be_tested_with(config, tmp_path):
    folder = saved_with(tmp_path / "plain", breed=["x", "y", "x", "y"], fine=[3, 2, 1, 0])
    says = "no labels to test with; data.label must name the column of their classes: breed, fine$"
    with pytest.raises(ConfigError, match=says):
        load_dataset(config(folder, test_share=0.5))
    assert len(load_dataset(config(folder, test_share=0.5, label="breed")).test) == 2


def test_what_another_rule_chose_is_not_read_from_the_cache(config, tmp_path, monkeypatch):
    """A version of this package took the only column of declared classes."""
    folder = saved_with(tmp_path / "plain", label=["x", "y", "x", "y"], kind=["a", "a", "b", "c"])
    with monkeypatch.context() as patched:
        patched.setattr(huggingface, "label_columns", lambda columns, declared: ["kind"])
        assert load_dataset(config(folder)).train.classes == ("a", "b", "c")
    assert load_dataset(config(folder)).train.classes == ("x", "y")


def test_a_run_on_it_with_flowers_own_partitioner(saved, tiny_overrides, tmp_path):
    pytest.importorskip("flwr_datasets", reason="needs the extra huggingface")
    folder = saved(train=split(120), test=split(30, first=120))
    run = tmp_path / "run"
    code = main([
        *tiny_overrides,
        f"run_dir={run}",
        "data=huggingface",
        f"data.dataset={folder}",
        "data.image_size=8",
        f"data.cache={tmp_path / 'cache'}",
        "partition=flwr_datasets",
        "partition.partitioner=LinearPartitioner",
        "federation.rounds=1",
    ])  # fmt: skip
    assert code == 0
    summary = json.loads((run / "summary.json").read_text())
    assert 0 <= summary["knn"] <= 1
    held = json.loads((run / "partition.json").read_text())
    assert held["classes"] == CLASSES
    assert [sum(counts) for counts in held["clients"].values()] == [12, 24, 36, 48]
