import numpy as np
import pytest

from orchestra_flwr.federation.exchanges import client_order
from orchestra_flwr.federation.server.cohorts import assign_numbers, draw_cohort, max_counted_images


def test_any_names_have_one_order():
    names = ["10", "2", "b", "a", "1", "alice", "bob"]
    assert sorted(names, key=client_order) == ["1", "2", "a", "b", "10", "bob", "alice"]


def test_numbers_are_ranks_and_later_clients_get_the_next_ones():
    first = assign_numbers([], {"10": 1, "2": 1, "1": 1})
    assert first == ["1", "2", "10"]
    later = assign_numbers(first, {"3": 1, "10": 1, "0": 1})
    assert later == ["1", "2", "10", "0", "3"]  # who is away keeps its number
    assert assign_numbers(later, {"2": 1}) == later


def test_cohorts_are_drawn_from_seed_and_round():
    clients = [str(client) for client in range(100)]
    first = draw_cohort(clients, 50, 0, 1)
    assert first == draw_cohort(list(reversed(clients)), 50, 0, 1)
    assert len(first) == len(set(first)) == 50
    assert first == tuple(sorted(first, key=int))
    assert first != draw_cohort(clients, 50, 0, 2)
    assert first != draw_cohort(clients, 50, 1, 1)


def test_cohorts_are_fair():
    counts = np.zeros(10)
    for round_ in range(1000):
        counts[[int(c) for c in draw_cohort([*"0123456789"], 3, 0, round_)]] += 1
    # Each count is binomial(1000, .3): standard deviation 14.5.
    assert abs(counts - 300).max() < 60


@pytest.mark.parametrize(
    ("images", "times", "most"),
    [
        ([10, 20, 30], 10, 200),
        ([10, 20], 10, 100),  # the lower one: of two, one cannot raise it
        ([48, 10**8], 2.5, 120),
        ([1], 1, 1),
        ([10, 20], None, None),
        ([], 10, None),
    ],
)
def test_what_counts_is_bounded_by_the_median(images, times, most):
    assert max_counted_images(images, times) == most


@pytest.mark.parametrize("count", range(3, 9))
def test_fewer_than_half_cannot_make_their_images_count_more(count):
    honest, hostile = [100] * (count // 2 + 1), [10**8] * (count - count // 2 - 1)
    assert max_counted_images(honest + hostile, 10) == 1000
