"""A new user's path: Dec-SSL and FeatARC on a folder of images, in real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orchestra_flwr import load_encoder

REPOSITORY = Path(__file__).parents[3]
SHORT = (
    "model=convnet", "model.width=8", "model.projector_hidden=32", "model.projector_dim=32",
    "federation.rounds=3", "training.local_epochs=1", "training.batch_size=16", "device=cpu",
    "engine.workers=2", "evaluation.every=3", "logging.progress=plain",
)  # fmt: skip


@pytest.fixture
def photos(tmp_path):
    """Class folders as people have them: JPEG files of different sizes."""
    random = np.random.default_rng(0)
    for part, count in (("train", 30), ("test", 10)):
        for number, colour in enumerate([(200, 40, 40), (40, 200, 40), (40, 40, 200)]):
            folder = tmp_path / "photos" / part / f"class{number}"
            folder.mkdir(parents=True)
            for n in range(count):
                noise = random.integers(0, 56, (40 + n, 48, 3)) + np.array(colour)
                Image.fromarray(noise.astype(np.uint8)).save(folder / f"{n}.jpg")
    return tmp_path / "photos"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("exchange", ["star", "clusters"])
def test_dec_ssl_on_a_folder_of_images(tmp_path, photos, exchange):
    more = ["exchange=clusters", "exchange.warm_rounds=1"] if exchange == "clusters" else []
    command = [
        *(sys.executable, str(REPOSITORY / "run_sim.py"), "preset=dec_ssl", "data=image_folder"),
        *(f"data.root={photos}", f"run_dir={tmp_path / 'run'}", *SHORT, *more),
    ]
    home = {"FLWR_HOME": str(tmp_path / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(
        command,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **home},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 3 and summary["linear"] > 0.8
    records = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(records[-1])
    assert last["clients"]["ok"] == 5
    assert load_encoder(tmp_path / "run").spec.normalise == "cifar"
    if more:
        members = last["exchange"]["members"]
        assert sorted(c for group in members.values() for c in group) == ["0", "1", "2", "3", "4"]
        assert len(list((tmp_path / "run" / "encoders").glob("*.safetensors"))) == 2
