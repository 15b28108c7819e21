import json

import numpy as np
import pytest
import torch

from orchestra_flwr.config import ConfigError, config_to_yaml
from orchestra_flwr.experiments.results.embedding import embed, project
from orchestra_flwr.experiments.results.runs import read_run
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder


def test_neighbours_stay_neighbours_and_the_result_is_always_the_same():
    rng = np.random.default_rng(0)
    features = np.concatenate([rng.normal(size=(15, 8)) + 20 * side for side in (0, 1)])
    points = project(features.astype(np.float32))
    assert points.shape == (30, 2)
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    nearest = distance.argmin(axis=1)
    assert ((nearest < 15) == (np.arange(30) < 15)).all()
    assert np.array_equal(points, project(features.astype(np.float32)))


@pytest.fixture
def run(tmp_path, tiny):
    def make(*overrides):
        config = tiny("data.test_limit=40", *overrides)
        (tmp_path / "config.yaml").write_text(config_to_yaml(config))
        spec = EncoderSpec(model=config.model, channels=1, image_size=8)
        save_encoder(tmp_path / "encoder.safetensors", Encoder(spec), backbone="target")
        return read_run(tmp_path)

    return make


def test_a_saved_encoder_sees_its_test_images_once(run):
    saved = run()
    embedding = embed(saved)
    assert embedding.points.shape == (40, 2)
    assert np.bincount(embedding.labels).tolist() == [4] * 10
    assert embedding.classes == tuple("0123456789")
    stored = json.loads((saved.folder / "embedding.json").read_text())
    stored["points"][0] = [7, 7]
    (saved.folder / "embedding.json").write_text(json.dumps(stored))
    assert embed(saved).points[0].tolist() == [7, 7]


@pytest.mark.parametrize(
    "change", ["", "[]", {"points": None}, {"points": [[0, "x"]]}, {"labels": [0]}]
)
def test_a_damaged_file_of_points_is_made_anew(run, change):
    saved = run()
    first, file = embed(saved), saved.folder / "embedding.json"
    values = {**json.loads(file.read_text()), **change} if isinstance(change, dict) else None
    file.write_text(change if values is None else json.dumps(values))
    assert np.array_equal(embed(saved).points, first.points)


def test_points_of_other_weights_are_made_anew(run):
    """As after `resume=` with more rounds, which saves another encoder."""
    folder = run().folder
    first = embed(run())
    assert len(json.loads((folder / "embedding.json").read_text())["weights_sha256"]) == 64
    torch.manual_seed(1)
    run()  # saves other weights
    second = embed(read_run(folder))
    assert not np.array_equal(first.points, second.points)


def test_missing_images_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        embed(run("data=image_folder", f"data.root={tmp_path}/nowhere"))
