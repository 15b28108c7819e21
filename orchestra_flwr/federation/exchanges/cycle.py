"""Nodes in a cycle, without a server."""

from typing import Any

import numpy as np

from orchestra_flwr.federation.gossip import Gossip, edges_to_graph


class Cycle(Gossip):
    """Each node mixes with the one before it and the one after it, around."""

    @classmethod
    def graph(cls, settings: Any, count: int) -> np.ndarray:
        nodes = np.arange(count)
        return edges_to_graph(count, nodes, (nodes + 1) % count)
