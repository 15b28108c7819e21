import json

import numpy as np
import pytest
import torch

from orchestra_flwr.config import ConfigError, config_to_yaml
from orchestra_flwr.experiments.results import embedding
from orchestra_flwr.experiments.results.embedding import embed
from orchestra_flwr.experiments.results.runs import read_run
from orchestra_flwr.models import Encoder, EncoderSpec, load_encoder, save_encoder


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
    embedded = embed(saved)
    assert embedded.points.shape == (40, 2)
    assert np.bincount(embedded.labels).tolist() == [4] * 10
    assert embedded.classes == tuple("0123456789")
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


def test_images_that_an_encoder_does_not_tell_apart_have_places(run):
    """t-SNE of features that are all the same ends the whole process (a segmentation fault)."""
    saved = run()
    encoder = load_encoder(saved.folder)
    for weight in encoder.parameters():
        weight.zero_()
    save_encoder(saved.folder / "encoder.safetensors", encoder, backbone="target")
    assert np.isfinite(embed(saved).points).all()


def test_a_single_image_has_a_place(run):
    saved = run("data.test_limit=1")
    assert np.isfinite(embed(saved).points).all() and embed(saved).points.shape == (1, 2)


def test_points_are_of_the_weights_that_made_them(run, monkeypatch):
    """The run saves other weights meanwhile."""
    saved = run()

    def placed(features, seed):
        torch.manual_seed(1)
        run()
        return np.zeros((len(features), 2))

    monkeypatch.setattr(embedding, "place_images", placed)
    embed(saved)
    monkeypatch.undo()
    assert embed(saved).points.any()


def test_missing_images_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        embed(run("data=image_folder", f"data.root={tmp_path}/nowhere"))
