"""How often a patch is taken for the attacker's image."""

from pathlib import Path

import pytest
import torch

from orchestra_flwr.cli import main
from orchestra_flwr.config import load_config

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def backdoor(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import backdoor

    return backdoor


@pytest.fixture
def run(tmp_path, tiny_overrides):
    def start(*overrides):
        folder = tmp_path / "run"
        lines = [*tiny_overrides, *overrides, "federation.rounds=1"]
        assert main([*lines, f"run_dir={folder}"]) == 0
        return folder

    return start


def test_a_run_with_attackers_has_a_line(backdoor, run, capsys):
    folder = run("attack=backdoor", "attack.clients=2")
    capsys.readouterr()
    backdoor.main([str(folder)])
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith("mean, checked, attackers 2: ") and line.endswith("(1 runs)")


def test_an_encoder_that_sees_nothing_but_the_patch_is_fooled(backdoor, run, monkeypatch):
    """Features that tell the patch alone: with it every image is like the attacker's class."""
    folder = run("attack=backdoor")
    assert backdoor.is_backdoored(folder)
    config = load_config([f"resume={folder}"])
    population = backdoor.load_population(config)
    train = population.dataset.train
    (client,) = backdoor.attackers(config, list(population.parts))
    target = train.labels[population.parts[client][0]]
    stripes = train.labels == target  # as if these alone looked like the patch

    def features(encoder, images, batch_size):
        if images is train.images or torch.equal(images, train.images):
            marked = stripes
        else:
            marked = torch.tensor([{0, 255} <= set(image.unique().tolist()) for image in images])
        return torch.stack([marked.float(), 1 - marked.float()], dim=1)

    monkeypatch.setattr(backdoor, "extract_features", features)
    name, without, with_patch = backdoor.success(folder)
    assert name == "mean, checked, attackers 1"
    assert with_patch == 1.0 and without < 1.0


def test_other_runs_have_none(backdoor, run):
    assert not backdoor.is_backdoored(run())
