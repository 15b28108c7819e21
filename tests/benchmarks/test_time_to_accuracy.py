"""Time to an accuracy: what records say it cost, and the published steps of SimCLR."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from orchestra_flwr.config import load_config
from orchestra_flwr.methods import build_method
from orchestra_flwr.methods.simclr import nt_xent_loss

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import time_to_accuracy

    return time_to_accuracy


def record(round_, examples, up, down, **probes):
    scores = {backbone: {"linear": probe} for backbone, probe in probes.items()}
    clients = {"examples": examples}
    return {
        "round": round_, "clients": clients, "bytes_up": up, "bytes_down": down, "scores": scores
    }  # fmt: skip


def test_costs_are_those_of_all_rounds_up_to_the_first_probe_as_high(benchmark):
    records = [
        record(0, 0, 0, 0, online=0.45),
        record(1, 10, 3, 4),
        record(2, 20, 5, 6, online=0.50),
        record(3, 20, 5, 6, online=0.49),
        record(4, 20, 5, 6, online=0.56),
    ]
    assert benchmark.costs(records, epochs=2, targets=(0.4, 0.5, 0.55, 0.6)) == {
        0.4: {"images": 0, "bytes": 0},
        0.5: {"images": 60, "bytes": 18},
        0.55: {"images": 140, "bytes": 40},
        0.6: None,
    }


def test_a_round_that_only_clusters_trains_on_no_image(benchmark):
    """It sends a model all the same. And only the saved encoder's probe counts."""
    records = [
        record(0, 20, 1, 9, target=0.45, online=0.45),
        record(1, 20, 5, 5, target=0.49, online=0.51),
        record(2, 20, 5, 5, target=0.52, online=0.53),
    ]
    costs = benchmark.costs(records, epochs=3, targets=(0.5,))
    assert costs == {0.5: {"images": 120, "bytes": 30}}


def test_the_published_step_of_simclr_computes_what_ours_does(benchmark):
    config = load_config(
        ["method=simclr", "data=cifar10", "model=convnet", "model.width=8",
         "model.projector_dim=16", "training.batch_size=8"]
    )  # fmt: skip
    model, copy = (build_method(config, 3).train().double() for _ in range(2))
    client = benchmark.PublishedSimCLR(model, benchmark.client_images(config, 8), config)
    views = [view.double() for view in client.batch()]
    client.train_on(views)

    features = [copy.projector(copy.backbone(view)) for view in views]
    nt_xent_loss(*features, copy.settings.temperature).backward()
    for ours, theirs in zip(copy.parameters(), model.parameters(), strict=True):
        gradient = ours.grad + config.optimizer.settings.weight_decay * ours
        moved = ours.detach() - config.training.lr * gradient
        torch.testing.assert_close(theirs, moved, atol=1e-12, rtol=1e-9)


def test_a_cell_has_what_was_done_once_beside_what_each_image_takes(benchmark):
    assert benchmark.cell({"images": 60, "bytes": 2e6}, 2.0) == "2.0 min, 2 MB"
    assert benchmark.cell({"images": 60, "bytes": 2e6}, 2.0, once=90) == "3.5 min, 2 MB"
    assert benchmark.cell({"images": 0, "bytes": 0}, 2.0, once=90) == "at the start"


def test_a_teacher_looks_once_at_each_image_of_a_run(benchmark, monkeypatch):
    looks = []
    teacher = types.SimpleNamespace(encode=lambda images, batch: looks.append(len(images)))
    monkeypatch.setattr(benchmark, "teacher_of", lambda config, client: teacher)
    monkeypatch.setattr(benchmark, "in_turns", in_a_second_each)
    config = load_config(["method=distill", "method.teacher=any", "data=cifar10"])
    assert benchmark.teacher_seconds(config, images=1000, count=8, repeats=2) == 125
    assert looks == [8]
    assert benchmark.teacher_seconds(load_config(["data=cifar10"]), 1000, 8, 2) == 0


def in_a_second_each(tasks, repeats, **options):
    for task in tasks.values():
        task()
    return dict.fromkeys(tasks, 1.0)


@pytest.mark.slow
def test_the_benchmark_measures_both_sides(tmp_path):
    subprocess.run(
        [sys.executable, BENCHMARKS / "time_to_accuracy.py", "--images", "32", "--repeats", "1"],
        env={**os.environ, "ORCHESTRA_RESULTS": str(tmp_path)},
        check=True,
    )
    runs = json.loads((tmp_path / "time_to_accuracy.json").read_text())["runs"]
    assert len(runs) == 4  # no weights of a pretrained network were named
    for run in runs.values():
        assert run["seconds_an_image"]["published"] > run["seconds_an_image"]["ours"] > 0
        assert run["reached"]["0.65"] is None
