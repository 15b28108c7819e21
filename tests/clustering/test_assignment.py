import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from orchestra_flwr.clustering.assignment import cheapest_assignment


def by_scipy(cost, places):
    seats = np.repeat(np.arange(len(places)), places)
    return seats[linear_sum_assignment(cost[:, seats])[1]]


def total(cost, group_of):
    return cost[np.arange(len(cost)), group_of].sum()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e4])
def test_as_scipy_finds_it(seed, spread):
    rng = np.random.default_rng(seed)
    groups = int(rng.integers(1, 17))
    places = rng.integers(0, 9, groups) + 1
    count = int(rng.integers(1, places.sum() + 1))
    cost = spread * rng.normal(size=(count, groups))
    assignment = cheapest_assignment(cost, places)
    # Without ties there is one best answer.
    assert np.array_equal(assignment, by_scipy(cost, places))
    assert (np.bincount(assignment, minlength=groups) <= places).all()


@pytest.mark.parametrize("seed", range(4))
def test_equal_costs_and_equal_points_end_at_the_same_total(seed):
    rng = np.random.default_rng(seed)
    cost = rng.integers(0, 3, (60, 7)).astype(float)
    cost[30:] = cost[:30]
    places = np.full(7, 9)
    assignment = cheapest_assignment(cost, places)
    assert total(cost, assignment) == total(cost, by_scipy(cost, places))
    assert np.bincount(assignment).max() <= 9


@pytest.mark.parametrize("seed", [2, 6, 8, 11])
def test_detours_that_save_only_what_rounding_leaves_end(seed):
    """Sums of tenths and thirds tie but for their last bits: members would be moved in circles."""
    rng = np.random.default_rng(seed)
    cost = 0.1 * rng.integers(0, 4, (15, 5)) + rng.integers(0, 3, 5) / 3
    places = np.full(5, 3)
    assignment = cheapest_assignment(cost, places)
    assert total(cost, assignment) == pytest.approx(total(cost, by_scipy(cost, places)), abs=1e-9)


def test_no_point_enters_a_group_that_is_forbidden_to_it():
    cost = np.array([[np.inf, 5.0], [0.0, 1.0], [0.0, 1.0]])
    assert cheapest_assignment(cost, np.array([2, 1])).tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="no group with a free place"):
        cheapest_assignment(np.array([[np.inf, 0.0]] * 2), np.array([2, 1]))


def test_too_few_places():
    with pytest.raises(ValueError, match="2 places for 3 points"):
        cheapest_assignment(np.zeros((3, 2)), np.array([1, 1]))
