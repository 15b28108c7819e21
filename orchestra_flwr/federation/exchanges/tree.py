"""Nodes in a binary tree, without a server."""

from typing import Any

import numpy as np

from orchestra_flwr.federation.gossip import Gossip, edges_to_graph


class Tree(Gossip):
    """A binary tree: the neighbours of node i are its parent (i - 1) // 2 and its children."""

    @classmethod
    def graph(cls, settings: Any, count: int) -> np.ndarray:
        nodes = np.arange(1, count)
        return edges_to_graph(count, nodes, (nodes - 1) // 2)
