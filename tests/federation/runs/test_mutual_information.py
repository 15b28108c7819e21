"""The preset of the mutual-information paper on a user's photographs: trains, judges, reports."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from orchestra_flwr import load_encoder
from orchestra_flwr.cli import main
from orchestra_flwr.console.text import percent
from orchestra_flwr.experiments.__main__ import main as report

SIZE = 16
QUICK = (
    "engine=inline",
    "device=cpu",
    "model.width=8",
    "model.projector_hidden=16",
    "model.projector_dim=8",
    "terms.verification.hidden=16",
    "terms.verification.dim=8",
    f"data.image_size={SIZE}",
    "federation.clients=4",
    "federation.participation=0.5",
    "federation.rounds=2",
    "evaluation.every=2",
    "logging.progress=plain",
)


@pytest.fixture
def photos(tmp_path):
    """Two classes of noisy colours, as a user has them in folders."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 16), ("test", 6)):
        for name, colour in (("red", (200, 60, 60)), ("blue", (60, 60, 200))):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(rng.normal(colour, 40, (SIZE, SIZE, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize("model", ["resnet18", "cct"])
@pytest.mark.slow
def test_a_new_users_path(tmp_path, photos, model, capsys):
    run = tmp_path / "run"
    arguments = ["preset=mutual_information", "data=image_folder", f"data.root={photos}",
                 f"model={model}", *QUICK, f"run_dir={run}"]  # fmt: skip
    assert main(arguments) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert 0 <= summary["linear"] <= 1 and 0 <= summary["knn"] <= 1 and summary["rounds"] == 2
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records[1:]:
        assert record["loss"].keys() == {"contrastive", "verification", "total"}
        assert np.isfinite(record["measures"]["information"])
    encoder = load_encoder(run)
    images = torch.randint(0, 256, (3, 3, SIZE, SIZE), dtype=torch.uint8)
    assert encoder(images).shape == (3, encoder.dim)
    assert encoder.spec.model.name == model
    assert percent(summary["linear"]) in capsys.readouterr().out
    assert report([str(tmp_path)]) == 0
    lines = (tmp_path / "report.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("| run | simclr ")]
    assert f"| {percent(summary['linear'])} |" in row
