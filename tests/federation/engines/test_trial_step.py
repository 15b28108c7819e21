"""The step that is tried before a run: how long it would take, and that it changes nothing."""

import time
from unittest import mock

import pytest
import torch

from orchestra_flwr.federation.engines import trial_step
from orchestra_flwr.federation.engines.trial_step import core_seconds
from orchestra_flwr.federation.population import load_population
from orchestra_flwr.reporting.run_estimate import first_estimate


@pytest.fixture
def long(tiny):
    return lambda *more: tiny("federation.rounds=20000", *more)


@pytest.mark.parametrize(
    ("pace", "counts"), [(0.001, [2, 2, 16, 64]), (0.05, [2, 2, 16]), (2, [2, 2])]
)
def test_it_is_the_time_of_an_image_times_those_of_all_rounds(long, monkeypatch, pace, counts):
    """Quick ones are tried with more images, and the slow first step counts for nothing."""
    config = long("training.local_epochs=3", "federation.participation=0.5")
    tried = []

    def step(config, population, count):
        tried.append(count)
        return pace * count + (0 if tried[1:] else 8 * pace * count)

    monkeypatch.setattr(trial_step, "train_a_batch", step)
    estimate = core_seconds(config, load_population(config))
    assert estimate == pytest.approx(pace * 60 * 20000 * 3)  # half of 120 images in each epoch
    assert tried == [count for count in counts for _ in range(2)]


def test_more_epochs_of_clients_with_few_images_count(long, monkeypatch):
    monkeypatch.setattr(trial_step, "train_a_batch", lambda config, population, count: count)
    few, enough = long("training.local_epochs=2"), long("training.min_steps=12")
    once = core_seconds(few, load_population(few))
    more = core_seconds(enough, load_population(enough))  # an epoch of 30 images has two steps
    assert more == pytest.approx(3 * once)


def test_what_is_done_once_an_image_counts_once(long, monkeypatch):
    """A teacher's features of an image: .5 s, where a pass of the student takes .01."""
    config, described = long(), set()

    def step(config, population, count):
        once = 0 if count in described else 0.5 * count
        described.add(count)
        return 0.01 * count + once

    monkeypatch.setattr(trial_step, "train_a_batch", step)
    estimate = core_seconds(config, load_population(config))
    assert estimate == pytest.approx(0.01 * 120 * 20000 + 0.5 * 120)


@pytest.mark.slow
def test_it_is_right_within_a_factor_of_two(tiny):
    """In seconds of this process, which others on the machine do not take."""
    config = tiny("federation.rounds=20000", "training.batch_size=32")
    population = load_population(config)
    clock = time.process_time
    with mock.patch.object(trial_step.time, "perf_counter", clock):
        estimate = core_seconds(config, population) / 20000 / 120  # of an image
        seconds = trial_step.train_a_batch(config, population, 120) / 120
    assert seconds / 2 < estimate < seconds * 2


def test_a_real_step_is_tried_and_draws_nothing(long):
    config = long()
    population = load_population(config)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    assert core_seconds(config, population) > 0
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads


def test_a_learning_rate_that_is_too_high_is_left_to_the_clients_to_report(long):
    config = long("method=simclr", "training.lr=1e20", "training.batch_size=4")
    assert core_seconds(config, load_population(config)) is None


def test_of_short_runs_nothing_is_tried(tiny, monkeypatch):
    monkeypatch.delattr(trial_step, "train_a_batch")
    config = tiny()
    assert core_seconds(config, load_population(config)) is None


def test_it_is_said_for_so_many_clients_at_the_same_time(tiny):
    config = tiny()  # 4 clients
    assert first_estimate(config, 7200, 2).startswith("training takes about 1 h 00 min, judging by")
    assert "about 30 min" in first_estimate(config, 7200, 16)  # no more than there are clients
    assert "about 12 days" in first_estimate(config, 12 * 86400, 1)
    assert first_estimate(config, 500, 2) is None  # the first round tells it within a minute
    large = tiny("data.image_size=224")
    assert "data.image_size=112 would take" in first_estimate(large, 7200, 1)
    assert "image_size" not in first_estimate(large, 600, 1)
    views = tiny("data.image_size=224", "data.augmentation.view_size=128")
    assert "data.augmentation.view_size=64 would take" in first_estimate(views, 7200, 1)
    assert "would take" not in first_estimate(
        tiny("data.image_size=224", "data.augmentation.view_size=64"), 7200, 1
    )
