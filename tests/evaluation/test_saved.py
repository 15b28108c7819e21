"""A saved encoder judged as a person does it: the command, its file, and one line for bad input."""

import importlib
import json
import os
import re
import shutil

import pytest
import torch
from PIL import Image

from orchestra_flwr.cli import evaluate_main
from orchestra_flwr.config import ConfigError, EvaluateConfig, ModelConfig, config_to_yaml, load
from orchestra_flwr.data import load_dataset
from orchestra_flwr.evaluation import knn_accuracy, linear_accuracy
from orchestra_flwr.experiments.results.runs import read_run
from orchestra_flwr.fingerprints import file_sha256
from orchestra_flwr.models import Encoder, EncoderSpec, extract_features, save_encoder


@pytest.fixture
def run(tmp_path, tiny):
    """A run folder as a finished run leaves it, with an untrained encoder."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(config_to_yaml(tiny()))
    torch.manual_seed(0)
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=1, image_size=8)
    save_encoder(folder / "encoder.safetensors", Encoder(spec), backbone="target")
    return folder


@pytest.fixture
def command(capsys):
    def call(*arguments):
        code = evaluate_main(["device=cpu", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_file_holds_what_the_runs_own_images_give(run, command, tiny, monkeypatch):
    fine_tuning = importlib.import_module("orchestra_flwr.evaluation.finetune")
    monkeypatch.setattr(fine_tuning, "EPOCHS", dict.fromkeys(fine_tuning.EPOCHS, 2))
    monkeypatch.setattr(fine_tuning, "MIN_STEPS", 4)
    code, out, _ = command(f"run={run}", "protocols=[knn,linear,finetune]", "seeds=2")
    assert code == 0
    assert "| kNN " in out and "fine-tuned with 1 % of the labels" in out and "±" in out
    report = json.loads((run / "evaluation" / "digits.json").read_text())
    assert (report["dataset"], report["backbone"]) == ("digits", "target")
    assert report["weights_sha256"] == file_sha256(run / "encoder.safetensors")
    assert report["images"] == {"train": 120, "test": 60}
    from orchestra_flwr import load_encoder

    encoder, data = load_encoder(run), load_dataset(tiny().data)
    bank, queries = (extract_features(encoder, p.images, 256) for p in (data.train, data.test))
    labels = data.train.labels, data.test.labels
    tenth = len(bank) // 10  # the most that vote
    assert report["knn"] == knn_accuracy(bank, labels[0], queries, labels[1], k=tenth)
    assert report["linear"] == pytest.approx(linear_accuracy(bank, labels[0], queries, labels[1]))
    assert set(report["finetune"]) == {"0.01", "0.1"} and "linear_published" not in report
    for runs in report["finetune"].values():
        assert len(runs["runs"]) == 2 and 0 <= runs["mean"] <= 1 and runs["std"] >= 0
    assert f"run={run}" in report["command"] and report["versions"]["torch"]
    assert [p.name for p in (run / "evaluation").iterdir()] == ["digits.json"]


def test_an_encoder_alone_by_other_images(run, command):
    (run / "config.yaml").unlink()
    code, _, err = command(f"run={run / 'encoder.safetensors'}", "protocols=[knn]")
    assert code == 2 and "data: must be given" in err
    code, _, _ = command(
        f"run={run / 'encoder.safetensors'}", "protocols=[knn]", "data=digits", "data.test_limit=30"
    )
    report = json.loads((run / "evaluation" / "digits.json").read_text())
    assert code == 0 and report["images"] == {"train": 1438, "test": 30}


def test_each_of_several_encoders_has_a_file_of_its_own(run, command):
    for name in ("model_0", "model_1"):
        for suffix in (".safetensors", ".json"):
            shutil.copy(run / f"encoder{suffix}", run / f"{name}{suffix}")
        assert command(f"run={run / name}.safetensors", "protocols=[knn]", "data=digits")[0] == 0
    files = {str(path.relative_to(run)) for path in run.glob("*evaluation/*")}
    assert files == {"model_0-evaluation/digits.json", "model_1-evaluation/digits.json"}


@pytest.mark.slow
def test_transfer_to_folders_of_other_classes_and_sizes(tmp_path, command):
    """As CIFAR-10 to STL-10: an encoder for 32 pixels is judged on larger images."""
    run = tmp_path / "run"
    run.mkdir()
    torch.manual_seed(0)
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=3, image_size=32,
                       normalise="cifar")  # fmt: skip
    save_encoder(run / "encoder.safetensors", Encoder(spec))
    for name, classes, side in (("first", 2, 32), ("second", 3, 48)):
        for part, count in (("train", 20), ("test", 6)):
            for label in range(classes):
                folder = tmp_path / name / part / f"class{label}"
                folder.mkdir(parents=True)
                for n in range(count):
                    colour = [30 + n] * 3
                    colour[label] = 200 + n
                    Image.new("RGB", (side, side), tuple(colour)).save(folder / f"{n}.png")
    for name, classes in (("first", 2), ("second", 3)):
        code, _, err = command(f"run={run / 'encoder.safetensors'}", "data=image_folder",
                                 f"data.root={tmp_path / name}",
                                 "protocols=[knn,linear,linear_10,linear_1]")  # fmt: skip
        assert code == 0, err
        report = json.loads((run / "evaluation" / f"image_folder-{name}.json").read_text())
        assert report["images"] == {"train": 20 * classes, "test": 6 * classes}
        assert report["knn"] == report["linear"] == 1
        assert report["linear_10"]["mean"] > 0.5 and report["linear_1"]["mean"] > 0.5


def test_images_with_several_labels_are_said_to_have_one_score(tmp_path, command, caplog):
    """The kNN that was asked for is left out, which nothing said."""
    for number in range(12):
        Image.new("RGB", (8, 8), (20 * number, 0, 255 - 20 * number)).save(
            tmp_path / f"{number}.png"
        )
    lines = [f"{number}.png,{'cat;dog' if number % 3 else 'cat'}" for number in range(12)]
    (tmp_path / "table.csv").write_text("\n".join(["file,label", *lines]))
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=3, image_size=8)
    save_encoder(tmp_path / "encoder.safetensors", Encoder(spec))
    code, out, err = command(
        f"run={tmp_path}/encoder.safetensors", "data=image_table", f"data.root={tmp_path}",
        f"data.table={tmp_path}/table.csv", "data.test_share=0.5", "protocols=[knn,linear]",
    )  # fmt: skip
    assert code == 0, err
    assert "evaluated by mean average precision (mAP) alone" in caplog.text
    assert "mean average precision" in out and "kNN" not in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "run: must be given"),
        (["run=missing"], "run=missing: missing/encoder.safetensors: no such file"),
        (["run={run}", "protocols=[knn,guess]"], "protocols.1=guess"),
        (["run={run}", "seeds=0"], "seeds=0"),
        (["run={run}", "training.lr=1"], "training.lr: unknown key"),
        (["run={run}", "data=imagenet"], "data=imagenet: must be one of"),
        (["run={run}", "data=cifar100"], "its images have 3 channels, the encoder expects 1"),
        (
            ["run={run}", "data=digits", "data.image_size=32"],
            "data.image_size=32: the encoder expects images of 8 x 8 pixels: data.image_size=8",
        ),
        (["run={run}", "name=../x"], "name=../x: must be the name of a file without .json"),
        (["run={run}", "device=tpu"], "device=tpu: must be auto, cpu"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(run, command, arguments, says, monkeypatch):
    monkeypatch.chdir(run)
    arguments = [a.replace("{run}", str(run)) for a in arguments]
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and says in err and err.count("\n") == 1
    assert not (run / "evaluation").exists()


def photographs(root):
    """A folder of images of two classes, as overrides; they are scaled to the encoder's size."""
    from PIL import Image

    for part in ("train", "test"):
        for name in ("a", "b"):
            (root / part / name).mkdir(parents=True)
            Image.new("RGB", (9, 9)).save(root / part / name / "0.png")
    return "data=image_folder", f"data.root={root}"


def test_one_folders_figures_are_not_lost_to_anothers(run, command, tmp_path, tiny):
    """A run on photographs, judged by its own and by others: what it is told by are its own."""
    photos, other = (photographs(tmp_path / name) for name in ("own", "other"))
    (run / "config.yaml").write_text(config_to_yaml(tiny(*photos, "data.image_size=8")))
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=3, image_size=8)
    save_encoder(run / "encoder.safetensors", Encoder(spec), backbone="target")
    for chosen in ((), other):
        assert command(f"run={run}", "protocols=[knn]", *chosen)[0] == 0
    names = {path.name for path in (run / "evaluation").iterdir()}
    assert names == {"image_folder-own.json", "image_folder-other.json"}
    report = read_run(run).evaluations["image_folder-own"]
    assert report["data"]["root"] == str(tmp_path / "own")


def test_an_evaluation_of_ones_own_name_leaves_the_others_as_they_are(run, command):
    assert command(f"run={run}", "protocols=[linear]")[0] == 0
    code, out, _ = command(f"run={run}", "protocols=[knn]", "data.test_limit=20", "name=few-20")
    assert code == 0 and out.splitlines()[-1] == str(run / "evaluation" / "few-20.json")
    whole, few = (
        json.loads((run / "evaluation" / f"{name}.json").read_text())
        for name in ("digits", "few-20")
    )
    assert (whole["images"]["test"], few["images"]["test"]) == (60, 20)
    assert "linear" in whole and "linear" not in few and few["dataset"] == "digits"


def test_a_place_that_cannot_be_written_is_told_before_the_evaluation(run, command, monkeypatch):
    (run / "evaluation").touch()
    monkeypatch.setattr("orchestra_flwr.evaluation.saved.evaluate_by", None)
    code, out, err = command(f"run={run}")
    assert (code, out) == (2, "")
    assert err == f"error: {run / 'evaluation'}: cannot be written (Not a directory)\n"


def test_what_was_evaluated_is_shown_where_the_disk_is_full(run, command, monkeypatch):
    def disk_is_full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_is_full)
    code, out, err = command(f"run={run}", "protocols=[knn]")
    assert code == 1 and "| kNN " in out and "spread of the features" in out
    assert err.startswith("error: ") and "No space left on device" in err and err.count("\n") == 1


def test_images_of_another_depth_are_told(run, command, tmp_path):
    code, _, err = command(f"run={run}", *photographs(tmp_path / "photos"))
    assert code == 2 and "its images have 3 channels, the encoder expects 1" in err


def test_a_damaged_encoder_is_told(run, command):
    (run / "encoder.safetensors").write_bytes(b"x")
    code, _, err = command(f"run={run}")
    assert code == 2 and err.startswith(f"error: run={run}: ") and err.count("\n") == 1


def test_own_images_may_be_limited_and_moved_but_stay_the_runs(run, tiny):
    data = load(EvaluateConfig, [f"run={run}", "data.test_limit=7"]).images()
    assert data == tiny("data.test_limit=7").data
    with pytest.raises(ConfigError, match="data.test_limit"):
        load(EvaluateConfig, [f"run={run}", "data.test_limit=0"])


def test_one_key_of_the_augmentation_leaves_the_runs_others(run):
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("crop_min: null", "crop_min: 0.3"))
    options = [f"run={run}", "data.augmentation.flip=false"]
    augmentation = load(EvaluateConfig, options).images().augmentation
    assert (augmentation.flip, augmentation.crop_min) == (False, 0.3)
    damaged = re.sub(r"augmentation:\n(    .*\n)+", "augmentation: damaged\n", file.read_text())
    file.write_text(damaged)
    assert load(EvaluateConfig, options).images().augmentation.flip is False


def test_help_shows_every_key_and_none_that_is_not_used(command):
    code, out, _ = command("--help")
    assert code == 0 and out.startswith("usage: orchestra-evaluate run=RUN")
    assert "protocols:" in out and "knn_k:" in out and "training:" not in out
