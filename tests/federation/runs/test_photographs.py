"""Every method on real photographs, on real Ray."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestra_flwr.config import MethodConfig, ModelConfig, load_config, without_unread
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder

REPOSITORY = Path(__file__).parents[3]
PHOTOS = REPOSITORY.parent / "shared" / "data" / "cifar10-jpeg.zip"
LEAST_STD = 0.3  # 0: all features are the same; 1: they point into all directions
GUESSED = 0.15  # accuracy that guessing among ten classes does not reach with 300 images
PROTOCOLS = ("knn", "linear", "linear_published", "finetune")
SMALL = (
    "engine=ray", "engine.workers=1", "device=cpu", "data=image_folder", f"data.root={PHOTOS}",
    "data.train_limit=600", "data.test_limit=300", "model.width=16", "model.projector_dim=64",
    "clustering.global_clusters=16", "clustering.local_clusters=4", "clustering.memory=64",
    "federation.clients=4", "federation.rounds=2", "training.local_epochs=3",
    "evaluation.every=2", "logging.progress=plain",
)  # fmt: skip


NEEDS = {"mae": ("model=vit_tiny", "model.width=24", "model.depth=2")}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not PHOTOS.is_file(), reason="the photographs are not here")
@pytest.mark.parametrize("method", [*MethodConfig.room.found(), "byol merging=fedu"])
def test_trains_without_collapse_and_is_judged_by_every_protocol(tmp_path, method):
    chosen = [*f"method={method}".split(), *NEEDS.get(method, ())]
    if method == "distill":
        teacher = Encoder(EncoderSpec(model=ModelConfig(name="convnet"), channels=3, image_size=32))
        save_encoder(tmp_path / "teacher.safetensors", teacher)
        chosen.append(f"method.teacher={tmp_path / 'teacher.safetensors'}")
    overrides = without_unread(load_config([*SMALL, *chosen]), [*SMALL, *chosen])
    overrides += [f"run_dir={tmp_path / 'run'}"]
    started = time.perf_counter()
    python(tmp_path, str(REPOSITORY / "run_sim.py"), *overrides)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"]["total"] for line in lines[1:]]
    untrained, trained = (scores["feature_std"] for scores in (summary["untrained"], summary))
    print(
        f"{method}: {time.perf_counter() - started:.0f} s, losses {losses}, kNN "
        f"{summary['untrained']['knn']:.3f} to {summary['knn']:.3f}, feature_std "
        f"{untrained:.2f} to {trained:.2f}"
    )
    # What they have to predict changes, with the global centroids or as the centre finds its place.
    if method not in ("orchestra", "dino"):
        assert losses[-1] < losses[0]
    assert trained > min(LEAST_STD, untrained / 2)  # a transformer's features spread less
    assert (tmp_path / "run" / "clients").is_dir() == ("merging" in method)
    python(
        tmp_path, "-m", "orchestra_flwr.evaluation", "run=run", "seeds=1", "device=cpu",
        f"protocols=[{','.join(PROTOCOLS)}]",
    )  # fmt: skip
    judged = tmp_path / "run" / "evaluation" / "image_folder-cifar10-jpeg.json"
    report = json.loads(judged.read_text())
    accuracies = {name: report[name] for name in PROTOCOLS[:3]}
    accuracies |= {
        f"finetune {share}": result["mean"] for share, result in report["finetune"].items()
    }
    print(accuracies)
    assert accuracies.pop("finetune 0.01") > 0  # ten labels
    assert min(accuracies.values()) > GUESSED


def python(folder, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False, capture_output=True, text=True, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
