"""Which engine is chosen, and that a chosen one runs. The same bits on both: test_ray.py."""

import importlib.util
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from orchestra_flwr.cli import main
from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import epoch_batches
from orchestra_flwr.federation.engines import auto, trial
from orchestra_flwr.federation.engines.inline import InlineEngine
from orchestra_flwr.federation.engines.ray import RayEngine
from orchestra_flwr.federation.population import load_population


def epoch(part, **options):
    return epoch_batches(len(part), 16, torch.Generator(), **options)


def chosen(config):
    return config.engine.build(config).chosen(load_population(config))


@pytest.fixture
def training(monkeypatch):
    """Training of so many seconds, on so many workers."""

    def takes(seconds, workers):
        monkeypatch.setattr(auto, "seconds_of_training", lambda config, population: seconds)
        monkeypatch.setattr(auto.AutoEngine, "_workers", lambda self: workers)

    return takes


@pytest.mark.parametrize(
    ("seconds", "workers", "kind", "line"),
    [
        (5.0, 2, InlineEngine, "about 5.0 s in one process, and Ray would save less"),
        (
            19.0,
            2,
            InlineEngine,
            "about 19 s in one process, and Ray would save less than its start takes",
        ),
        (21.0, 2, RayEngine, "engine=ray was chosen: the clients' training takes about 21 s"),
        (11.0, 16, RayEngine, "about 11 s"),
        (1000.0, 1, InlineEngine, "and there is one core"),
    ],
)
def test_the_longer_training_takes_the_more_ray_pays(tiny, training, seconds, workers, kind, line):
    training(seconds, workers)
    engine, why = chosen(tiny("engine=auto"))
    assert type(engine) is kind and line in why


def test_whoever_gives_an_option_of_ray_gets_ray(tiny, training):
    training(1.0, 1)
    engine, why = chosen(tiny("engine=auto", "engine.workers=2"))
    assert type(engine) is RayEngine and why is None
    assert engine.settings.workers == 2


def test_without_ray_clients_run_inline_unless_it_was_asked_for(tiny, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else found(name)
    )
    monkeypatch.setattr(auto, "seconds_of_training", lambda *given: 1e6)
    config = tiny("engine=auto")
    config.engine.build(config).check_resources()
    engine, why = chosen(config)
    assert type(engine) is InlineEngine and "Ray is not installed" in why
    config = tiny("engine=auto", "engine.workers=2")
    with pytest.raises(ConfigError, match="Ray is not installed"):
        config.engine.build(config).check_resources()


def test_steps_are_those_of_all_clients_and_rounds(tiny):
    config = tiny("federation.participation=0.5", "training.local_epochs=3", "federation.rounds=7")
    population = load_population(config)
    batches = sum(len(epoch(part)) for part in population.parts.values())
    assert trial.local_steps(config, population) == batches * 3 * 7 * 0.5


@pytest.mark.parametrize("drop_last", [False, True])
def test_as_many_images_are_tried_as_the_largest_batch_has(tiny, monkeypatch, drop_last):
    """Batches of nearly equal size may be larger than training.batch_size: 23 images are one."""
    config = tiny(f"training.drop_last={str(drop_last).lower()}")
    population = load_population(config)
    parts = {"0": np.arange(23), "1": np.arange(23, 54)}
    seen = []
    monkeypatch.setattr(trial, "train_round", lambda learner, images, *_, **__: seen.append(images))
    trial.trial_round(config, replace(population, parts=parts))(1)
    largest = max(len(b) for part in parts.values() for b in epoch(part, drop_last=drop_last))
    assert len(seen[0]) == largest == (16 if drop_last else 23)


def test_the_estimate_is_near_the_time_that_training_takes(tiny, monkeypatch):
    """On a clock that counts steps: each takes a second."""
    config = tiny("federation.rounds=3")
    population = load_population(config)
    now = 0.0
    train_round = trial.train_round

    def counted(learner, images, config, *given, **named):
        nonlocal now
        done = train_round(learner, images, config, *given, **named)
        now += done.steps
        return done

    monkeypatch.setattr(trial, "train_round", counted)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    assert trial.seconds_of_training(config, population) == trial.local_steps(config, population)


def test_a_small_run_is_inline_and_says_so(tiny_overrides, tmp_path, capsys):
    folders = {name: tmp_path / name for name in ("inline", "auto")}
    for name, folder in folders.items():
        assert main([*tiny_overrides, f"engine={name}", f"run_dir={folder}"]) == 0
    assert "engine=inline was chosen" in capsys.readouterr().out
    first, second = ((f / "encoder.safetensors").read_bytes() for f in folders.values())
    assert first == second
