"""Graphs of nodes, and the matrices by which neighbours mix their models.

Metropolis weights: Xiao, Boyd and Kim, "Distributed Average Consensus with Least-Mean-Square
Deviation", Journal of Parallel and Distributed Computing, 2007.
"""

import numpy as np

from orchestra_flwr.seeding import numpy_generator

DRAWS = 1000  # of a random graph, until one is connected


def cycle_graph(count: int) -> np.ndarray:
    """(count, count) bool: node i beside i + 1 and i - 1, around."""
    graph = np.zeros((count, count), bool)
    nodes = np.arange(count)
    return _both_ways(graph, nodes, (nodes + 1) % count)


def tree_graph(count: int) -> np.ndarray:
    """(count, count) bool: a binary tree, numbered as a heap; the parent of i is (i - 1) // 2."""
    nodes = np.arange(1, count)
    return _both_ways(np.zeros((count, count), bool), nodes, (nodes - 1) // 2)


def random_graph(count: int, edge: float, seed: int) -> np.ndarray:
    """(count, count) bool: each edge with a probability, drawn anew until it is connected.

    Args:
        count: nodes.
        edge: the probability.
        seed: of the draws.

    Raises:
        ValueError: none of many draws is connected.
    """
    generator = numpy_generator(seed, "graph")
    ones, others = np.triu_indices(count, 1)
    for _ in range(DRAWS):
        drawn = generator.random(len(ones)) < edge
        graph = _both_ways(np.zeros((count, count), bool), ones[drawn], others[drawn])
        if is_connected(graph):
            return graph
    raise ValueError(f"none of {DRAWS} random graphs of {count} nodes is connected")


def is_connected(graph: np.ndarray) -> bool:
    """Whether every node can be reached from the first."""
    reached = np.eye(len(graph), dtype=bool)[0]
    for _ in graph:
        reached = reached | graph[reached].any(0)
    return bool(reached.all())


def metropolis_weights(graph: np.ndarray) -> np.ndarray:
    """(count, count) symmetric and doubly stochastic: mixing leaves the mean of all nodes as it is.

    An edge weighs 1 / (1 + the larger degree of its ends); a node itself weighs the rest.
    """
    degrees = graph.sum(1)
    weights = np.where(graph, 1 / (1 + np.maximum.outer(degrees, degrees)), 0.0)
    return weights + np.diag(1 - weights.sum(1))


def uniform_weights(graph: np.ndarray) -> np.ndarray:
    """(count, count) row-stochastic: each node takes the mean of itself and its neighbours.

    Not doubly stochastic where degrees differ: nodes with many neighbours count more in the end.
    """
    closed = graph + np.eye(len(graph))
    result: np.ndarray = closed / closed.sum(1, keepdims=True)
    return result


def second_eigenvalue(weights: np.ndarray) -> float:
    """The second largest size of an eigenvalue: by it a mix shrinks what nodes differ in, at last.

    A single mix with weights that are not symmetric may do less: :func:`largest_factor`.
    """
    sizes = np.sort(np.abs(np.linalg.eigvals(weights)))
    return float(sizes[-2]) if len(sizes) > 1 else 0.0


def largest_factor(weights: np.ndarray) -> float:
    """By what factor, at most, a mix changes the nodes' distance from their mean.

    The spectral norm of (1 - J) W (1 - J), J = 1/count everywhere. It is the second eigenvalue
    where the weights are symmetric; otherwise it is larger and may exceed 1.
    """
    centring = np.eye(len(weights)) - 1 / len(weights)
    return float(np.linalg.norm(centring @ weights @ centring, 2))


def _both_ways(graph: np.ndarray, ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    graph[ones, others] = graph[others, ones] = True
    np.fill_diagonal(graph, False)
    return graph
