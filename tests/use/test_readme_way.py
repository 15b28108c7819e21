"""README's way from images to use, by its commands: simulate, embed, label, export, classify.

The last step is another program that has onnxruntime, and in which torch cannot be imported.
"""

import csv
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from orchestra_flwr.config import load_config
from orchestra_flwr.data import load_dataset

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
PLACES = [folder / "shared/data/cifar10-jpeg.zip" for folder in ROOT.parents]
CIFAR = Path(os.environ.get("CIFAR10_ZIP") or next(filter(Path.exists, PLACES), "nowhere"))
EACH = {"train": 150, "test": 50}  # photographs of each of the ten classes
LABELLED = 20

SMALL = (
    "engine=inline", "device=cpu", "training.threads=2", "model.width=16", "federation.clients=4",
    "federation.participation=1", "logging.progress=off",
)  # fmt: skip
OF_PHOTOGRAPHS = ("federation.rounds=5", "training.local_epochs=2", "evaluation.every=5")
OF_DIGITS = (
    "data.image_size=16", "data.augmentation.flip=false", "federation.rounds=6",
    "training.local_epochs=2", "evaluation.every=6",
)  # fmt: skip

CLASSIFY = """if True:
    import csv, io, json, sys, zipfile
    sys.modules["torch"] = None  # importing it fails
    import numpy as np
    import onnxruntime
    from PIL import Image
    from safetensors import safe_open

    model, classifier, photos = sys.argv[1:]
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with safe_open(classifier, framework="np") as file:
        weight, bias = file.get_tensor("weight"), file.get_tensor("bias")
        classes = json.loads(file.metadata()["classes"])
    archive = zipfile.ZipFile(photos)
    for name in archive.namelist():
        if name.startswith("test/"):
            with Image.open(io.BytesIO(archive.read(name))) as image:
                pixels = np.asarray(image.convert("RGB")).transpose(2, 0, 1)[None]
            (features,) = session.run(["features"], {"images": pixels})
            print(name, classes[int((weight @ features[0] + bias).argmax())])
    assert not any(name.partition(".")[0] == "orchestra_flwr" for name in sys.modules)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def write_photographs(path):
    """Some of CIFAR-10's photographs (JPEG copy)."""
    if not CIFAR.is_file():
        pytest.skip("shared/data/cifar10-jpeg.zip is not there, and CIFAR10_ZIP names no other")
    with zipfile.ZipFile(CIFAR) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            file = Path(name)
            if file.suffix == ".jpg" and int(file.stem) < EACH[file.parts[0]]:
                target.writestr(name, source.read(name))


def write_digits(path):
    """The demo's digits."""
    dataset = load_dataset(load_config(["data=affine_digits"]).data)
    with zipfile.ZipFile(path, "w") as target:
        for part, images in (("train", dataset.train), ("test", dataset.test)):
            for number, (image, label) in enumerate(zip(images.images, images.labels, strict=True)):
                png = BytesIO()
                Image.fromarray(image[0].numpy()).save(png, "PNG")
                target.writestr(f"{part}/{label}/{number:04d}.png", png.getvalue())


def run(program, *more):
    """Runs the one command of README that begins so, with more overrides, in this process."""
    lines = [line.partition("  #")[0] for line in README.splitlines() if line.startswith(program)]
    command, *arguments = shlex.split(lines[0])
    module, _, function = SCRIPTS[command].partition(":")
    assert getattr(importlib.import_module(module), function)([*arguments, *more]) == 0


def class_of(name):
    return name.split("/")[1]


def accuracy(predicted):
    """Of (name, class) of test images."""
    right = [class_of(name) == label for name, label in predicted if name.startswith("test/")]
    return sum(right) / len(right)


def write_labels(photos, path):
    """LABELLED training images of each class, as a person may label them."""
    with zipfile.ZipFile(photos) as archive:
        names = [name for name in archive.namelist() if name.startswith("train/")]
    chosen = []
    for label in sorted({class_of(name) for name in names}):
        of_class = [name for name in names if class_of(name) == label]
        chosen += of_class[:: len(of_class) // LABELLED][:LABELLED]
    rows = [f"{name},{class_of(name)}" for name in chosen]
    path.write_text("\n".join(["path,label", *rows]))


@pytest.mark.parametrize(
    ("images", "more", "floor", "gain"),
    [
        # By chance .1. Photographs: five rounds bring little, by which seeds differ.
        pytest.param(write_photographs, OF_PHOTOGRAPHS, 0.2, None, id="photographs"),
        pytest.param(write_digits, OF_DIGITS, 0.4, 0.05, id="digits"),
    ],
)
def test_from_images_to_a_classifier_without_torch(
    images, more, floor, gain, tmp_path, monkeypatch, capsys
):
    for library in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(library, reason="needs the extra onnx")
    monkeypatch.chdir(tmp_path)
    images(tmp_path / "photos.zip")
    write_labels(tmp_path / "photos.zip", tmp_path / "labels.csv")

    run("orchestra-sim data=image_folder", *SMALL, *more, "run_dir=outputs/my-run")
    run("orchestra-embed", "device=cpu", "page.limit=500")
    run("orchestra-label", "device=cpu")
    run("orchestra-export")

    folder = tmp_path / "outputs" / "my-run"
    summary = json.loads((folder / "summary.json").read_text())
    use = folder / "embeddings" / "photos"
    assert (use / "embeddings.html").stat().st_size > 100_000
    with (use / "predictions.csv").open() as file:
        by_torch = {row["path"]: row["label"] for row in csv.DictReader(file)}
    labelled = json.loads((use / "labelling.json").read_text())
    files = folder / "export" / "encoder.onnx", use / "classifier.safetensors", "photos.zip"
    done = subprocess.run(
        [sys.executable, "-c", CLASSIFY, *map(str, files)],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    by_onnx = dict(line.split() for line in done.stdout.splitlines())

    stations = {
        "untrained, kNN": summary["untrained"]["knn"],
        "simulated, kNN": summary["knn"],
        "untrained, probe with all labels": summary["untrained"]["linear"],
        "simulated, probe with all labels": summary["linear"],
        "labelled, cross-validation of 20 a class": labelled["cross_validation"]["accuracy"],
        "labelled, test images": accuracy(by_torch.items()),
        "exported, test images by onnxruntime": accuracy(by_onnx.items()),
    }
    with capsys.disabled():
        print("", *(f"{100 * value:5.1f} %  {name}" for name, value in stations.items()), sep="\n")
    assert stations["labelled, test images"] > floor
    assert stations["labelled, cross-validation of 20 a class"] > floor - 0.05
    if gain:
        assert summary["knn"] > summary["untrained"]["knn"] + gain
        assert summary["linear"] > summary["untrained"]["linear"] + gain
    same = [by_torch[name] == label for name, label in by_onnx.items()]
    assert sum(same) >= 0.995 * len(same)  # rounding may turn a tie


def test_readme_names_what_is_run_here():
    """The commands, and README's picture of the page."""
    for program in ("orchestra-sim data=image_folder", "orchestra-embed", "orchestra-label"):
        assert re.search(rf"^{re.escape(program)} ", README, re.MULTILINE)
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+\.jpg)\)", README)
    assert Image.open(ROOT / picture).width >= 1000
