"""Nodes in a binary tree, without a server."""

from typing import Any

import numpy as np

from orchestra_flwr.federation.topologies import Gossip
from orchestra_flwr.federation.topologies.graphs import tree_graph


class Tree(Gossip):
    """A binary tree: the neighbours of node i are its parent (i - 1) // 2 and its children."""

    @classmethod
    def graph(cls, settings: Any, count: int) -> np.ndarray:
        """As :meth:`Gossip.graph`."""
        return tree_graph(count)
