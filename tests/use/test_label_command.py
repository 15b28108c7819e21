"""`orchestra-label` as a person calls it."""

import csv
import json
import shutil

import pytest
import torch
from safetensors import safe_open

from orchestra_flwr import load_encoder
from orchestra_flwr.cli import compare_main, embed_main, label_main
from orchestra_flwr.models import save_encoder
from orchestra_flwr.use.embedding_files import read_embeddings
from orchestra_flwr.use.image_embeddings import embed


@pytest.fixture
def command(capsys):
    def call(*arguments):
        code = label_main(["device=cpu", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def labels_csv(photos, each=6):
    file = photos.parent / "labels.csv"
    rows = [f"{c}/{n:02d}.png,{c}" for c in ("blue", "green", "red") for n in range(each)]
    file.write_text("\n".join(["path,label", *rows]) + "\n")
    return file


def predictions(folder):
    return [*csv.DictReader((folder / "predictions.csv").open())]


def test_a_table_of_labels_labels_all_others(run, photos, command):
    weights = (run / "encoder.safetensors").read_bytes()
    code, out, err = command(f"run={run}", f"images={photos}", f"labels={labels_csv(photos)}")
    assert code == 0, err
    assert "accuracy: 100.0 % (95 % confidence interval 82.4 to 100.0 %)" in out
    assert "18 labelled images, 3 classes" in out
    assert "embedded 36 of 36 images" in err and "classified 18 of 18 images" in err
    folder = run / "embeddings" / "photos"
    rows = predictions(folder)
    others = [f"{c}/{n:02d}.png" for c in ("blue", "green", "red") for n in range(6, 12)]
    assert [row["path"] for row in rows] == others
    assert all(row["label"] == row["path"].split("/")[0] for row in rows)
    assert all(1 / 3 < float(row["probability"]) <= 1 for row in rows)
    report = json.loads((folder / "labelling.json").read_text())
    assert report["classes"] == ["blue", "green", "red"] and report["predicted"] == 18
    assert report["cross_validation"]["images"] == 18
    assert (run / "encoder.safetensors").read_bytes() == weights


def test_the_classifier_that_is_saved_makes_the_predictions(run, photos, command):
    command(f"run={run}", f"images={photos}", f"labels={labels_csv(photos)}")
    folder = run / "embeddings" / "photos"
    with safe_open(folder / "classifier.safetensors", framework="pt") as file:
        weight, bias = file.get_tensor("weight"), file.get_tensor("bias")
        classes = json.loads(file.metadata()["classes"])
    key = json.loads((folder / "embeddings.json").read_text())["key"]
    embeddings = read_embeddings(folder, key=key, format="safetensors")
    vectors = dict(zip(embeddings.paths, embeddings.vectors, strict=True))
    for row in predictions(folder):
        scores = (weight @ vectors[row["path"]] + bias).softmax(0)
        assert classes[scores.argmax()] == row["label"]
        assert float(scores.max()) == pytest.approx(float(row["probability"]), abs=1e-3)


def test_the_results_are_no_class_of_the_labels(run, photos, command):
    """A page with its pictures beside it leaves a picture there for every 1,024 images."""
    results = photos / "results"
    shutil.copytree(photos / "red", results)
    code, _, err = command(
        f"run={run}", f"images={photos}", f"labels={photos}", f"folder={results}"
    )
    assert code == 0, err
    assert json.loads((results / "labelling.json").read_text())["classes"] == [
        "blue", "green", "red",
    ]  # fmt: skip


@pytest.mark.parametrize("format", ["npz", "parquet"])
def test_embeddings_that_are_there_are_used_whatever_their_format(
    run, photos, command, monkeypatch, format
):
    if format == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    arguments = [f"run={run}", f"images={photos}", f"labels={labels_csv(photos)}"]
    assert command(*arguments, f"format={format}")[0] == 0
    monkeypatch.setattr("orchestra_flwr.use.embed_command.embed", None)
    code, out, err = command(*arguments)
    assert code == 0, err
    assert f"embeddings.{format} (36 images" in out


def test_class_folders_label_all_images(run, photos, command, tmp_path):
    for name in ("blue", "green", "red"):
        for number in range(5):
            inside = "close up" if number % 2 else "."
            file = tmp_path / "examples" / "train" / f"my {name}" / inside / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(photos / name / f"{number:02d}.png", file)
    results = tmp_path / "results"
    code, _, _ = command(
        f"run={run}", f"images={photos}", f"labels={tmp_path / 'examples'}", f"folder={results}"
    )
    assert code == 0
    rows = predictions(results)
    assert len(rows) == 36
    assert all(row["label"] == "my " + row["path"].split("/")[0] for row in rows)
    assert not [*results.glob("unfinished*")]


def test_images_in_test_have_labels_as_those_in_train(run, photos, command, tmp_path):
    for name in ("blue", "green", "red"):
        for part, first in (("train", 0), ("test", 4)):
            for number in range(first, first + 4):
                file = tmp_path / "examples" / part / name / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(photos / name / f"{number:02d}.png", file)
    examples = tmp_path / "examples"
    code, out, err = command(f"run={run}", f"images={examples}", f"labels={examples}")
    assert code == 0, err
    assert "24 labelled images, 3 classes" in out and "nothing to predict" in out


def test_the_encoder_of_the_beginning_is_used_for_all(run, photos, command, tmp_path, monkeypatch):
    """A run that is resumed replaces it while images are embedded, which may take hours."""
    seen = []

    def embed_and_replace(encoder, *arguments, **keys):
        embeddings = embed(encoder, *arguments, **keys)
        seen.append(next(encoder.parameters()).clone())
        if len(seen) == 1:
            other = load_encoder(run)
            with torch.no_grad():
                next(other.parameters()).neg_()
            save_encoder(run / "encoder.safetensors", other)
        return embeddings

    for module in ("embed_command", "label_command"):
        monkeypatch.setattr(f"orchestra_flwr.use.{module}.embed", embed_and_replace)
    examples = shutil.copytree(photos, tmp_path / "examples")
    arguments = [f"run={run}", f"images={photos}", f"labels={examples}"]
    code, _, err = command(*arguments)
    assert code == 0, err
    assert len(seen) == 2 and torch.equal(*seen)
    command(*arguments)  # the embeddings are not taken for those of the new encoder
    assert len(seen) == 4 and torch.equal(seen[2], -seen[0])


@pytest.mark.parametrize(
    ("main", "key"), [(label_main, "seed"), (compare_main, "seed"), (embed_main, "page.seed")]
)
def test_a_seed_that_is_too_large_is_refused_before_images_are_embedded(main, key, capsys):
    named = "after" if main is compare_main else "run"
    labels = ["labels=nowhere"] if main is label_main else []
    arguments = [f"{named}=nowhere", "images=nowhere", *labels]
    assert main([*arguments, f"{key}={2**32}"]) == 2
    assert f"{key}=4294967296: input should be less than 4294967296" in capsys.readouterr().err
    assert main([*arguments, f"{key}={2**32 - 1}"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_an_image_that_is_labelled_meanwhile_waits_for_the_next_command(
    run, photos, command, tmp_path, monkeypatch
):
    """While all images are embedded, which may take hours, a person goes on labelling."""
    examples = shutil.copytree(photos, tmp_path / "examples")

    def embed_while_another_comes(*arguments, **keys):
        shutil.copy(examples / "red" / "00.png", examples / "red" / "another.png")
        return embed(*arguments, **keys)

    monkeypatch.setattr("orchestra_flwr.use.embed_command.embed", embed_while_another_comes)
    arguments = [f"run={run}", f"images={photos}", f"labels={examples}"]
    code, out, err = command(*arguments)
    assert code == 0, err
    assert "36 labelled images" in out
    assert "37 labelled images" in command(*arguments)[1]


def test_labelled_folders_among_the_images_are_not_predicted(run, photos, command):
    """Predictions are for images without a label, wherever these lie."""
    for name in ("blue", "green", "red"):
        for number in range(6):
            file = photos / "sorted" / name / f"{number:02d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            (photos / name / file.name).rename(file)
    shutil.copytree(photos / "red", photos / "sorted too")
    code, out, err = command(f"run={run}", f"images={photos}", f"labels={photos / 'sorted'}")
    assert code == 0, err
    paths = [row["path"] for row in predictions(run / "embeddings" / "photos")]
    assert len(paths) == 24 and not any(path.startswith("sorted/") for path in paths)
    assert "nothing to predict" not in out
    code, out, err = command(f"run={run}", f"images={photos}", f"labels={photos}")
    assert code == 0 and "(0 images)\nno image is without a label, so there was" in out, err


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("path,label\nblue/00.png,a\n", "at least two classes"),
        ("path,label\nblue/00.png,a\nx.png,b\n", "x.png cannot be found in images="),
        ("name,label\n", "has no column path"),
    ],
)
def test_wrong_labels_are_refused_before_anything_is_embedded(
    run, photos, command, tmp_path, text, error
):
    (tmp_path / "labels.csv").write_text(text)
    code, out, err = command(f"run={run}", f"images={photos}", f"labels={tmp_path / 'labels.csv'}")
    assert code == 2 and out == "" and err.count("\n") == 1 and error in err
    assert not (run / "embeddings").exists()


def test_labels_of_images_that_are_not_there(run, photos, command):
    file = labels_csv(photos)
    file.write_text(file.read_text().replace("red/00.png", "red/99.png"))
    code, _, err = command(f"run={run}", f"images={photos}", f"labels={file}")
    assert code == 2 and "red/99.png cannot be found" in err


def test_broken_images_with_a_label_are_left_out(run, photos, command):
    file = labels_csv(photos)
    for name in ("00", "01"):
        (photos / "red" / f"{name}.png").write_bytes(b"no image")
    arguments = [f"run={run}", f"images={photos}", f"labels={file}"]
    code, out, err = command(*arguments)
    assert code == 2 and "class red has 4 labelled images" in err
    dropped = "left out 2 labels of images that cannot be read: red/00.png, red/01.png\n"
    assert dropped in out
    file.write_text(file.read_text() + "red/06.png,red\nred/07.png,\n")
    code, out, err = command(*arguments)
    assert code == 0, err
    assert "red/00.png: not an image" in out and "on 17 labelled images" in out
    paths = [row["path"] for row in predictions(run / "embeddings" / "photos")]
    assert "red/07.png" in paths and "red/06.png" not in paths


def test_broken_images_in_class_folders_are_named(run, photos, command, tmp_path):
    examples = shutil.copytree(photos, tmp_path / "examples")
    (examples / "red" / "03.png").write_bytes(b"no image")
    code, out, err = command(f"run={run}", f"images={photos}", f"labels={examples}")
    assert code == 0, err
    assert "left out 1 label of images that cannot be read: red/03.png\n" in out
    assert "on 35 labelled images" in out


def test_labels_must_be_given(run, photos, command):
    code, _, err = command(f"run={run}", f"images={photos}")
    assert code == 2 and err.startswith("error: labels: must be given")
