"""Nodes in a random graph, without a server."""

import numpy as np
from pydantic import Field

from orchestra_flwr.federation.gossip import Gossip, edges_to_graph
from orchestra_flwr.seeding import numpy_generator

DRAWS = 1000  # of a graph, until one is connected


class Random(Gossip):
    """Any two nodes are neighbours with the same probability; drawn once, and connected."""

    class Settings(Gossip.Settings):
        edge: float = Field(0.7, gt=0, le=1)  # probability of each edge
        seed: int = Field(0, ge=0)  # of the graph

    @classmethod
    def graph(cls, settings: Settings, count: int) -> np.ndarray:
        generator = numpy_generator(settings.seed, "graph")
        ones, others = np.triu_indices(count, 1)
        for _ in range(DRAWS):
            drawn = generator.random(len(ones)) < settings.edge
            graph = edges_to_graph(count, ones[drawn], others[drawn])
            if is_connected(graph):
                return graph
        raise ValueError(
            f"exchange.edge={settings.edge:g}: none of {DRAWS} random graphs of {count} nodes is "
            "connected; must be larger"
        )


def is_connected(graph: np.ndarray) -> bool:
    """Whether every node can be reached from the first."""
    reached = np.eye(len(graph), dtype=bool)[0]
    for _ in graph:
        reached = reached | graph[reached].any(0)
    return bool(reached.all())
