"""Whole runs in which clients show some of their labels."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from orchestra_flwr.cli import main
from orchestra_flwr.evaluation import linear_accuracy
from orchestra_flwr.evaluation.linear_probe import PENALTY
from orchestra_flwr.federation.aggregations.mean import Mean
from orchestra_flwr.federation.population import evaluation_dataset, load_population
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.methods.labels import shown_labels
from orchestra_flwr.models import Encoder, extract_features
from orchestra_flwr.training import build_learner

SIZE = 16
COLOURS = {"red": (200, 60, 60), "blue": (60, 60, 200)}


@pytest.fixture
def photos(tmp_path):
    """Two classes of noisy colours, and images of both that lie loose beside their folders."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 6)):
        for name, colour in COLOURS.items():
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(rng.normal(colour, 40, (SIZE, SIZE, 3)), 0, 255).astype(np.uint8)
                loose = part == "train" and number % 3 == 0
                place = folder.parent / f"{name}{number}.png" if loose else folder / f"{number}.png"
                Image.fromarray(pixels).save(place)
    return tmp_path / "photos"


@pytest.fixture
def quick(tiny_overrides):
    """What these runs read of it."""
    return [o for o in tiny_overrides if not o.startswith(("clustering.", "data="))]


def test_a_folder_with_labelled_and_loose_images(tmp_path, photos, quick):
    run = tmp_path / "run"
    arguments = [*quick, "method=simclr", "terms.verification.weight=1", "partition=iid",
                 "data=image_folder", f"data.root={photos}", f"data.image_size={SIZE}",
                 "labels.fraction=1", "terms.verification.hidden=16", f"run_dir={run}"]  # fmt: skip
    assert main(arguments) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["linear_labelled"] == summary["linear"]  # all labels are shown
    assert 0 <= summary["accuracy"] <= 1
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["loss"].keys() == {
        *("contrastive", "contrastive_class", "classification", "verification", "total")
    }
    split = json.loads((run / "partition.json").read_text())
    assert split["classes"] == ["blue", "red", "no label"]
    assert np.array(list(split["clients"].values())).sum(0).tolist() == [8, 8, 8]


def test_a_partition_by_class_needs_all_labels(photos, quick, capsys):
    arguments = [*quick, "method=simclr", "data=image_folder", f"data.root={photos}",
                 f"data.image_size={SIZE}"]  # fmt: skip
    assert main(arguments) == 2
    assert "partition=dirichlet: needs labels, and 8 of the images have none" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("limit", [3, 30])
def test_a_limit_leaves_out_no_label_that_clients_use(tiny, limit):
    """Of the clients' twelve labels the three images of the limit hold none, and thirty three."""
    config = tiny("method=simclr", "labels.fraction=0.1", f"evaluation.limit={limit}")
    data = evaluation_dataset(config, load_population(config))
    evaluator = Evaluator(config, data)
    assert int(evaluator.dataset.shown.sum()) == (0 if limit == 3 else 3)
    method = build_learner(config, 1).method
    accuracy = evaluator.scores(method)["online"]["linear_labelled"]
    if limit == 30:
        encoder, test = Encoder.of(config, method.backbone), evaluator.dataset.test
        labels = data.train.labels[data.shown]
        features = extract_features(encoder, data.train.images[data.shown], 256)
        queries = extract_features(encoder, test.images, 256)
        assert accuracy == linear_accuracy(features, labels, queries, test.labels, PENALTY)


def test_the_server_counts_what_all_clients_used(tiny, tmp_path, federate):
    """CBAFed with thresholds that nothing exceeds: the shares stay those of the labels shown."""
    config = tiny("method=cbafed", "labels.fraction=0.1", "method.base=1", "method.upper=1",
                  "method.rare=0", f"run_dir={tmp_path / 'run'}")  # fmt: skip
    run = federate(config)
    judging = evaluation_dataset(config, load_population(config))
    labels = judging.train.labels[judging.shown]
    expected = torch.bincount(labels, minlength=10) / len(labels)
    assert torch.allclose(run.state["shares"], expected)
    assert run.records[1]["loss"]["classification"] > 0


def test_cbafeds_mean_is_weighted_by_the_images_used(tiny, tmp_path, federate, monkeypatch):
    """With thresholds that nothing exceeds these are the labels shown; uniform: all alike."""
    weights = {}

    add = Mean.add

    def watched(self, values, weight):
        weights.setdefault(weighting, []).append(weight)
        add(self, values, weight)

    monkeypatch.setattr(Mean, "add", watched)
    for weighting in ("samples", "uniform"):
        config = tiny("method=cbafed", "labels.fraction=0.1", "method.base=1", "method.upper=1",
                      "method.rare=0", "federation.rounds=1", "federation.participation=1",
                      f"federation.weighting={weighting}",
                      f"run_dir={tmp_path / weighting}")  # fmt: skip
        federate(config, evaluate=False)
    population = load_population(config)
    labels = population.dataset.train.labels
    shown = [(shown_labels(config, labels[population.parts[c]], c) >= 0).sum().item()
             for c in sorted(population.parts)]  # fmt: skip
    assert weights == {"samples": shown, "uniform": [1.0] * len(shown)}
    assert shown != [len(population.parts[c]) for c in sorted(population.parts)]
