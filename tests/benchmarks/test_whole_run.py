import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from orchestra_flwr.config import load_config

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = [
    "data=image_folder", "data.root=.", "model=convnet", "model.width=8", "model.projector_dim=16",
    "federation.clients=3", "federation.participation=0.7", "federation.rounds=1",
    "training.batch_size=8", "training.local_epochs=1", "clustering.global_clusters=4",
    "clustering.local_clusters=2", "clustering.memory=16",
]  # fmt: skip


@pytest.fixture
def whole(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import published_run
    import whole_run

    return published_run, whole_run


def test_a_published_run_trains_averages_and_clusters(whole, tmp_path):
    published_run, whole_run = whole
    random.seed(0)
    whole_run.write_photographs(tmp_path, 48)
    train, test = (published_run.photographs(tmp_path / part) for part in ("train", "test"))
    assert train[0].shape == (48, 3, 32, 32) and len(test[0]) == 12
    assert set(train[1].tolist()) == set(range(10))

    rounds = []

    def answers_of(client, tasks):
        answers = []
        for config, state, images, trains in tasks:
            before = {name: tensor.clone() for name, tensor in state.items()}
            after, centroids, batches = client((config, state, images, trains))
            moved = (after["backbone.layers.0.weight"] != before["backbone.layers.0.weight"]).any()
            assert trains == bool(moved)
            assert (trains, centroids.shape, batches) == (len(rounds) > 0, (2, 16), 2)
            answers.append((after, centroids, batches))
        rounds.append(answers)
        return answers

    config = load_config(SMALL)
    accuracies = published_run.run(config, train, test, answers_of)
    assert [len(answers) for answers in rounds] == [2, 2]
    assert len(accuracies) == 2 and all(0 <= accuracy <= 1 for accuracy in accuracies)


def test_states_are_averaged_by_batches(whole):
    published_run, _ = whole
    first = {"w": torch.tensor([0.0, 3.0]), "n": torch.tensor(4)}
    second = {"w": torch.tensor([4.0, 3.0]), "n": torch.tensor(8)}
    mean = published_run.average([(first, torch.zeros(0), 3), (second, torch.zeros(0), 1)])
    assert mean["w"].tolist() == [1.0, 3.0] and mean["w"].dtype == torch.float32
    assert int(mean["n"]) == 5


def test_local_clusters_are_means_of_what_is_alike(whole):
    published_run, _ = whole
    torch.manual_seed(1)
    directions = torch.eye(2, 8).repeat_interleave(10, 0)
    points = normalize(directions + 0.05 * torch.randn(20, 8), dim=1)
    centroids = published_run.local_clusters(points, 2)
    expected = torch.stack([normalize(half.mean(0), dim=0) for half in points.split(10)])
    agreement = centroids @ expected.T
    torch.testing.assert_close(agreement.max(1).values, torch.ones(2))


@pytest.mark.slow
def test_the_benchmark_runs_and_tells_ratios(tmp_path):
    subprocess.run(
        [sys.executable, BENCHMARKS / "whole_run.py", "--rounds", "1", "--width", "8",
         "--photographs", "400", "--engine", "inline"],
        env={**os.environ, "ORCHESTRA_RESULTS": str(tmp_path)},
        check=True,
    )  # fmt: skip
    result = json.loads((tmp_path / "whole_run.json").read_text())
    seconds = result["seconds"]
    assert result["whole_fp32_ratio"] == pytest.approx(seconds["published"] / seconds["float32"])
    run = result["runs"]["float32"][0]
    assert 0 < run["rounds"] < run["seconds"]
