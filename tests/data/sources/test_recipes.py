"""Natural owners by one word: each recipe on a few images of its data set's own schema."""

import csv
import json

import pytest

from orchestra_flwr.cli import evaluate_main, main
from orchestra_flwr.config import EvaluateConfig, load, load_config
from orchestra_flwr.data import load_dataset, partition_by_name
from orchestra_flwr.reporting.run_result import Result

datasets = pytest.importorskip("datasets", reason="needs the extra huggingface")

TEXT, NUMBER = datasets.Value("string"), datasets.Value("int64")


def named(*names):
    return datasets.ClassLabel(names=list(names))


# What the cards of the data sets say of their columns; values by row.
HUB = {
    "femnist": ({"writer_id": TEXT, "hsf_id": NUMBER, "character": named("0", "a")}, "writer_id"),
    "flair": (
        {
            **{"user_id": TEXT, "image_id": NUMBER, "labels": datasets.Sequence(TEXT)},
            **{"partition": TEXT, "fine_grained_labels": datasets.Sequence(TEXT)},
        },
        "user_id",
    ),
    "pacs": ({"domain": TEXT, "label": named("dog", "horse")}, "domain"),
    "office_home": ({"domain": TEXT, "label": named("Bed", "Pen")}, "domain"),
    "domainnet": ({"label": named("ant", "zoo"), "domain": named("clipart", "real")}, "domain"),
    "fed_isic2019": ({"center": NUMBER, "label": named("MEL", "NV")}, "center"),
    "camelyon17": (
        {"label": named("no", "tumor"), "center": named("c1", "c2"), "patient": NUMBER},
        "center",
    ),
}
WITHOUT_TEST_IMAGES = {"femnist", "pacs", "office_home"}


def value(kind, row):
    """Two owners, and two classes within each of them."""
    if kind == TEXT:
        return f"owner/{row % 2}"
    if isinstance(kind, datasets.ClassLabel | datasets.Value):
        return row % 2 if row < 8 else 1 - row % 2
    return [["food", "plant"], ["plant"], []][row % 3]


def split(features, picture):
    columns = {name: [value(kind, row) for row in range(16)] for name, kind in features.items()}
    columns["label"] = [row // 2 % 2 for row in range(16)] if "label" in features else None
    if "character" in features:
        columns["character"] = [row // 2 % 2 for row in range(16)]
    rows = {name: cells for name, cells in columns.items() if cells} | {"image": picture}
    return datasets.Dataset.from_dict(
        rows, features=datasets.Features({"image": datasets.Image(), **features})
    )


@pytest.fixture(scope="module")
def pictures():
    from PIL import Image

    return [Image.new("RGB", (20, 16), (12 * row, 90, 200)) for row in range(16)]


@pytest.mark.parametrize("name", HUB)
def test_each_owner_is_a_client(name, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    features, owner = HUB[name]
    parts = ["train"] if name in WITHOUT_TEST_IMAGES else ["train", "test"]
    folder = tmp_path / "saved"
    datasets.DatasetDict({part: split(features, pictures) for part in parts}).save_to_disk(folder)
    config = load_config([
        *(f"data={name}", f"data.dataset={folder}", f"data.cache={tmp_path / 'cache'}"),
        *(["data.groups=2"] if name in ("femnist", "flair") else ["federation.clients=2"]),
    ])  # fmt: skip
    assert config.data.settings.group == owner
    dataset = load_dataset(config.data)
    assert dataset.test is not None and dataset.test.targets is not None
    clients = partition_by_name(config.partition, dataset.train, config.federation.clients, 0)
    assert len(clients) == 2 and sum(map(len, clients.values())) == len(dataset.train)
    if isinstance(features[owner], datasets.ClassLabel):  # owners by name, not by number
        assert list(clients) == features[owner].names
    if name == "flair":
        assert dataset.train.classes == ("food", "plant") and dataset.train.labels is None
        assert dataset.train.tags[:3].tolist() == [[True, True], [False, True], [False, False]]


def test_an_encoder_of_other_images_is_evaluated_on_a_recipe(pictures, tmp_path):
    """Recipes choose partition and merging, which an evaluation does not have."""
    folder = tmp_path / "saved"
    datasets.DatasetDict({"train": split(HUB["pacs"][0], pictures)}).save_to_disk(folder)
    config = load(EvaluateConfig, [f"run={tmp_path}", "data=pacs", f"data.dataset={folder}"])
    assert config.images(16).settings.group == "domain" and config.images(16).image_size == 16


def table(file, columns, rows):
    with file.open("w") as out:
        csv.writer(out).writerows([columns, *rows])
    return str(file)


@pytest.mark.parametrize("name", ["inaturalist_user", "landmarks_user"])
def test_users_of_a_table_are_clients(name, pictures, tmp_path, caplog):
    """Files are known by their names without folder and suffix; some are not there."""
    for row, picture in enumerate(pictures):
        folder = tmp_path / "images" / str(row % 3)
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"0f{row}.jpg")
    lines = [[f"user {row % 3}", f"0f{row}", 40 + row % 2] for row in range(12)]
    train = table(tmp_path / "train.csv", ["user_id", "image_id", "class"], [*lines, [9, "no", 40]])
    tests = [[f"0f{row}", 40 + row % 2] for row in range(12, 16)]
    config = load_config([
        *(f"data={name}", f"data.root={tmp_path / 'images'}", f"data.table={train}"),
        f"data.test_table={table(tmp_path / 'test.csv', ['image_id', 'class'], tests)}",
        *(f"data.cache={tmp_path / 'cache'}", "data.groups=2", "data.image_size=8"),
    ])  # fmt: skip
    dataset = load_dataset(config.data)
    assert "1 of 13 images are not below data.root and are left out, such as no" in caplog.text
    assert dataset.train.classes == ("40", "41") and len(dataset.test) == 4
    clients = partition_by_name(config.partition, dataset.train, config.federation.clients, 0)
    assert len(clients) == 2 and {*clients} < {"user 0", "user 1", "user 2"}
    assert [len(part) for part in clients.values()] == [4, 4]
    assert load_dataset(config.data).train.files == dataset.train.files  # from the cache


def test_a_run_on_several_labels_has_a_mean_average_precision(
    pictures, tiny_overrides, tmp_path, capsys
):
    features, _ = HUB["flair"]
    folder = tmp_path / "saved"
    parts = {part: split(features, pictures) for part in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(folder)
    run = [
        *(*tiny_overrides, "data=flair", f"data.dataset={folder}", "data.groups=2"),
        *(f"data.cache={tmp_path / 'cache'}", "data.image_size=8", f"run_dir={tmp_path / 'run'}"),
        *("federation.clients=2", "federation.participation=1", "federation.rounds=1"),
        *("model=convnet_16", "training.local_epochs=1", "logging.progress=plain"),
        "evaluation.probe=converged",
    ]
    assert main(run) == 0
    summary = Result(tmp_path / "run").summary
    assert 0 < summary["map"] <= 1 and summary["untrained"]["map"] > 0
    assert "knn" not in summary and "linear" not in summary
    shown = capsys.readouterr()
    saved = [
        f"run={tmp_path / 'run'}",
        f"data.dataset={folder}",
        f"data.cache={tmp_path / 'cache'}",
    ]
    assert evaluate_main(saved) == 0
    table = capsys.readouterr().out
    assert "mean average precision" in table and "kNN" not in table
    (results,) = (tmp_path / "run" / "evaluation").glob("*.json")
    assert json.loads(results.read_text())["map"] == pytest.approx(summary["map"], abs=1e-4)
    assert "| mAP, " in shown.out and "kNN" not in shown.out
    assert "are evaluated by mean average precision (mAP) alone" in shown.out + shown.err
    assert main([*run[:-1], f"run_dir={tmp_path / 'best'}", "evaluation.keep=best",
                 "evaluation.best_by=linear"]) == 2  # fmt: skip
    assert "images with several labels have no such score" in capsys.readouterr().err
