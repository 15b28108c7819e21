"""How long a run will take: said once, from the first clients of the first round."""

import time

import pytest

from orchestra_flwr.reporting.run_estimate import RunEstimate


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture
def said():
    return []


@pytest.fixture
def made(tiny, said):
    def make(*overrides, cores=2, workers=1, memory=lambda: 2.5e9):
        return RunEstimate(
            tiny(*overrides), cores=cores, workers=workers, memory=memory, message=said.append
        )

    return make


def replies(estimate, clock, count, seconds, images=5):
    for _ in range(count):
        clock.now += seconds
        estimate.client_done(images)


def test_the_first_clients_of_a_long_round_tell_it_once(made, clock, said):
    estimate = made()
    estimate.evaluation = 50
    estimate.round_started(100, 10, [5] * 40)
    replies(estimate, clock, 2, 10)
    assert said == []  # too soon
    replies(estimate, clock, 38, 10)
    estimate.round_ended(400)
    estimate.round_started(99, 9, [5] * 40)
    replies(estimate, clock, 40, 10)
    (line,) = said  # 100 rounds of 400 s and ten evaluations of 50 s
    assert line == (
        "at this pace 100 rounds take about 11 h 15 min and 2.5 GB of memory "
        "(engine=ray would use 2 cores)"
    )


def test_the_second_clients_of_the_workers_tell_their_pace(made, clock, said):
    """The first ones take longer by what starting the workers takes."""
    estimate = made(workers=4)
    estimate.round_started(10, 0, [5] * 16)
    replies(estimate, clock, 1, 90)
    replies(estimate, clock, 3, 0)
    replies(estimate, clock, 1, 40)
    assert said == []
    replies(estimate, clock, 3, 0)
    assert said == [
        "at this pace 10 rounds take about 27 min and 2.5 GB of memory"
    ]  # 4 x 40 s each


def test_first_clients_that_take_long_tell_it_as_well(made, clock, said):
    estimate = made(workers=2, memory=None)
    estimate.round_started(10, 0, [5] * 4)
    replies(estimate, clock, 1, 290)
    assert said == []
    replies(estimate, clock, 1, 10)
    assert said == ["at this pace 10 rounds take about 1 h 40 min"]


def test_a_client_of_most_images_is_not_taken_for_all(made, clock, said):
    """With uneven clients the count of those that have answered says little."""
    estimate = made(memory=None)
    estimate.round_started(10, 0, [5, 300, 10, 10, 5, 20, 10, 20, 10, 10])
    replies(estimate, clock, 1, 5, images=5)
    replies(estimate, clock, 1, 60, images=300)
    assert said == ["at this pace 10 rounds take about 13 min"]  # 60 / 300 s an image, 400 images


@pytest.mark.parametrize(
    ("workers", "images"), [(None, [5] * 8), (1, None)], ids=["clients elsewhere", "several stages"]
)
def test_otherwise_the_whole_round_tells_it(made, clock, said, workers, images):
    estimate = made(workers=workers, memory=None)
    estimate.round_started(1, 0, images)
    replies(estimate, clock, 4, 60)
    assert said == []
    estimate.round_ended(240)
    assert said == ["at this pace 1 round takes about 4 min"]


def test_what_would_take_less_is_said_of_long_runs_only(made, clock, said):
    large = ("data.image_size=224",)
    for seconds in (17, 19):  # 28 and 32 minutes
        estimate = made(*large, "engine=ray")
        estimate.round_started(100, 0, [5] * 4)
        estimate.round_ended(seconds)
    short, long = said
    assert short == "at this pace 100 rounds take about 28 min and 2.5 GB of memory"
    assert long.endswith("of memory (data.image_size=112 would take about a quarter)")


def test_evaluations_that_take_most_of_the_time_are_named(made, said):
    for overrides in ((), ("evaluation.limit=1000",)):
        estimate = made("engine=ray", *overrides)
        estimate.evaluation = 300
        estimate.round_started(20, 20, [5] * 4)
        estimate.round_ended(100)
    named, quiet = said
    assert "2 h 13 min and" in named
    assert "evaluation.limit=1000 would take less for evaluations, more than half" in named
    assert "evaluation" not in quiet


def test_of_short_runs_nothing_is_said(made, clock, said):
    estimate = made()
    estimate.round_started(10, 0, [5] * 4)
    estimate.round_ended(5.9)
    estimate.round_started(9, 0, [5] * 4)
    estimate.round_ended(60)
    assert said == []
