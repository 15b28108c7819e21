"""Nodes in a cycle, without a server."""

from typing import Any

import numpy as np

from orchestra_flwr.federation.topologies import Gossip
from orchestra_flwr.federation.topologies.graphs import cycle_graph


class Cycle(Gossip):
    """Each node mixes with the one before it and the one after it, around."""

    @classmethod
    def graph(cls, settings: Any, count: int) -> np.ndarray:
        """As :meth:`Gossip.graph`."""
        return cycle_graph(count)
