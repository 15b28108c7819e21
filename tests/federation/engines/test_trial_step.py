"""The step that is tried before a run: how long it would take, and that it changes nothing."""

import pytest
import torch

from orchestra_flwr.federation.engines import trial_step
from orchestra_flwr.federation.engines.trial_step import core_seconds
from orchestra_flwr.federation.population import load_population
from orchestra_flwr.reporting.run_estimate import first_estimate


@pytest.fixture
def long(tiny):
    return lambda *more: tiny("federation.rounds=10000", *more)


def test_it_is_the_time_of_an_image_times_those_of_all_rounds(long, monkeypatch):
    config = long("training.local_epochs=3", "federation.participation=0.5")
    tried = []

    def step(config, population, count):
        tried.append(count)
        return pace * count

    monkeypatch.setattr(trial_step, "train_a_batch", step)
    for pace, counts in ((0.02, [2, 16]), (2, [2])):  # quick ones are tried with more images
        tried.clear()
        found = core_seconds(config, load_population(config))
        assert found == pytest.approx(pace * 60 * 10000 * 3)  # half of 120 images in each epoch
        assert tried == counts


def test_a_real_step_is_tried_and_draws_nothing(long):
    config = long()
    population = load_population(config)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    assert core_seconds(config, population) > 0
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads


def test_of_short_runs_nothing_is_tried(tiny, monkeypatch):
    monkeypatch.delattr(trial_step, "train_a_batch")
    config = tiny()
    assert core_seconds(config, load_population(config)) is None


def test_it_is_said_for_so_many_clients_at_the_same_time(tiny):
    config = tiny()  # 4 clients
    assert first_estimate(config, 7200, 2).startswith("training takes about 1 h 00 min by a first")
    assert "about 30 min" in first_estimate(config, 7200, 16)  # no more than there are clients
    assert "about 12 days" in first_estimate(config, 12 * 86400, 1)
    assert first_estimate(config, 100, 2) is None
    large = tiny("data.image_size=224")
    assert "data.image_size=112 would take" in first_estimate(large, 7200, 1)
    assert "image_size" not in first_estimate(large, 600, 1)
