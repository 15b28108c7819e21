"""`federation.rounds=0`: what a run begins with is evaluated and saved."""

import pytest
import torch
from safetensors.torch import load_file

from orchestra_flwr import Result
from orchestra_flwr.cli import main
from orchestra_flwr.evaluation import knn_accuracy, voters
from orchestra_flwr.federation.population import load_population
from orchestra_flwr.models import load_encoder


@pytest.fixture
def run(tiny_overrides, tmp_path):
    def start(*overrides, folder="run", rounds=0):
        mine = [
            o for o in tiny_overrides if "method=orchestra" in overrides or "clustering" not in o
        ]
        command = [*mine, *overrides, f"federation.rounds={rounds}", f"run_dir={tmp_path / folder}"]
        assert main(command) == 0
        return tmp_path / folder

    return start


def test_the_start_is_scored_and_nobody_is_asked(run, capsys):
    # A schedule has no factor in a run without an epoch.
    summary = Result(folder := run("method=simclr", "schedule=cosine")).summary
    assert summary["rounds"] == summary["bytes_up"] == summary["bytes_down"] == 0
    assert summary["knn"] == summary["untrained"]["knn"] and summary["linear"] > 0.1
    assert [record.round for record in Result(folder).metrics] == [0]
    shown = capsys.readouterr().out
    assert "| before training |" in shown and "trained |" not in shown.replace("before", "")


def test_the_saved_encoder_has_the_printed_score(run, tiny):
    """With random weights it has BatchNorm statistics of the server's images."""
    summary = Result(folder := run("method=simclr")).summary
    assert summary["batch_norm"] == summary["untrained"]["batch_norm"] == "recalibrated"
    encoder, dataset = load_encoder(folder), load_population(tiny()).dataset
    train, test = ((encoder(part.images), part.labels) for part in (dataset.train, dataset.test))
    accuracy = knn_accuracy(*train, *test, k=voters(200, len(dataset.train)))
    assert accuracy == pytest.approx(summary["knn"], abs=1e-6)


@pytest.mark.parametrize("method", ["simclr", "orchestra"])
def test_with_more_rounds_it_ends_in_the_same_bits(run, method):
    folder = run(f"method={method}")
    assert main([f"resume={folder}", "federation.rounds=1"]) == 0
    at_once = run(f"method={method}", folder="at_once", rounds=1)
    states = [load_file(path / "encoder.safetensors") for path in (folder, at_once)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert Result(folder).summary["knn"] == Result(at_once).summary["knn"]
