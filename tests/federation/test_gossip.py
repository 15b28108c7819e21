import numpy as np
import pytest

from orchestra_flwr.federation.exchanges.cycle import Cycle
from orchestra_flwr.federation.exchanges.random import Random, is_connected
from orchestra_flwr.federation.exchanges.tree import Tree
from orchestra_flwr.federation.gossip import (
    largest_factor,
    metropolis_weights,
    second_eigenvalue,
    uniform_weights,
)


def random_graph(count, edge, seed):
    return Random.graph(Random.Settings(edge=edge, seed=seed), count)


GRAPHS = {
    "one": Cycle.graph(None, 1),
    "pair": Cycle.graph(None, 2),
    "cycle": Cycle.graph(None, 10),
    "tree": Tree.graph(None, 20),
    "random": random_graph(20, 0.3, 0),
    "complete": random_graph(6, 1, 0),
}


def test_neighbours_by_hand():
    assert [list(np.flatnonzero(row)) for row in Cycle.graph(None, 5)] == [
        [1, 4], [0, 2], [1, 3], [2, 4], [0, 3],
    ]  # fmt: skip
    assert [list(np.flatnonzero(row)) for row in Tree.graph(None, 6)] == [
        [1, 2], [0, 3, 4], [0, 5], [1], [1], [2],
    ]  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_symmetric_connected_and_without_loops(name):
    graph = GRAPHS[name]
    assert graph.dtype == bool and (graph == graph.T).all() and not graph.diagonal().any()
    assert is_connected(graph)


@pytest.mark.parametrize("name", GRAPHS)
def test_metropolis_weights_are_symmetric_and_doubly_stochastic(name):
    graph = GRAPHS[name]
    weights = metropolis_weights(graph)
    np.testing.assert_array_equal(weights, weights.T)
    np.testing.assert_allclose(weights.sum(0), 1)
    np.testing.assert_allclose(weights.sum(1), 1)
    assert (weights >= 0).all() and (weights.diagonal() > 0).all()
    assert not weights[~graph & ~np.eye(len(graph), dtype=bool)].any()


def test_uniform_weights_let_nodes_with_many_neighbours_count_more():
    np.testing.assert_allclose(
        uniform_weights(Cycle.graph(None, 10)), metropolis_weights(Cycle.graph(None, 10))
    )
    weights = uniform_weights(Tree.graph(None, 20))
    np.testing.assert_allclose(weights.sum(1), 1)
    limit = np.linalg.matrix_power(weights, 10_000).mean(0) * 20
    assert limit.min() == pytest.approx(0.69, abs=0.01)
    assert limit.max() == pytest.approx(1.38, abs=0.01)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (Cycle.graph(None, 10), 0.873),
        (Cycle.graph(None, 20), 0.967),
        (Tree.graph(None, 10), 0.956),
        (Tree.graph(None, 20), 0.983),
        (random_graph(6, 1, 0), 0.0),
        (Cycle.graph(None, 1), 0.0),
    ],
)
def test_second_eigenvalues(graph, expected):
    assert second_eigenvalue(metropolis_weights(graph)) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("mixes", [1, 4])
@pytest.mark.parametrize(
    "weights", [metropolis_weights(Cycle.graph(None, 9)), uniform_weights(Tree.graph(None, 9))]
)
def test_the_largest_factor_bounds_a_mix_and_is_reached(weights, mixes):
    """The second eigenvalue, which is the bound with symmetric weights alone, is exceeded."""
    mixed = np.linalg.matrix_power(weights, mixes)
    bound = largest_factor(mixed)

    def factor(models):
        before, after = models, mixed @ models
        return np.linalg.norm(after - after.mean(0)) / np.linalg.norm(before - before.mean(0))

    drawn = np.random.default_rng(0).normal(size=(200, 9, 3))
    assert max(map(factor, drawn)) <= bound + 1e-12
    centring = np.eye(9) - 1 / 9
    worst = np.linalg.svd(centring @ mixed @ centring)[2][:1].T
    assert factor(worst) == pytest.approx(bound)
    if (weights == weights.T).all():
        assert second_eigenvalue(mixed) == pytest.approx(bound)
    else:
        assert second_eigenvalue(mixed) < bound - 1e-3


def test_random_graphs_mix_well_on_average():
    eigenvalues = [
        second_eigenvalue(metropolis_weights(random_graph(20, 0.7, s))) for s in range(50)
    ]
    assert np.mean(eigenvalues) == pytest.approx(0.43, abs=0.02)


def test_random_graphs_are_drawn_until_one_is_connected():
    assert (random_graph(20, 0.3, 4) == random_graph(20, 0.3, 4)).all()
    assert (random_graph(20, 0.3, 4) != random_graph(20, 0.3, 5)).any()
    assert all(is_connected(random_graph(8, 0.2, seed)) for seed in range(30))
    shares = [random_graph(20, 0.7, seed).mean() * 20 / 19 for seed in range(50)]
    assert np.mean(shares) == pytest.approx(0.7, abs=0.02)
    with pytest.raises(ValueError, match="none of 1000 random graphs of 30 nodes is connected"):
        random_graph(30, 0.001, 0)
