"""Nodes in a random graph, without a server."""

import numpy as np
from pydantic import Field

from orchestra_flwr.federation.topologies import Gossip, GossipSettings
from orchestra_flwr.federation.topologies.graphs import random_graph


class RandomSettings(GossipSettings):
    """Options under `exchange.` for exchange=random."""

    edge: float = Field(0.7, gt=0, le=1)  # probability of each edge
    seed: int = Field(0, ge=0)  # of the graph


class Random(Gossip):
    """Each two nodes are neighbours with a probability; drawn once, connected."""

    Settings = RandomSettings

    @classmethod
    def graph(cls, settings: RandomSettings, count: int) -> np.ndarray:
        """As :meth:`Gossip.graph`."""
        try:
            return random_graph(count, settings.edge, settings.seed)
        except ValueError as error:
            raise ValueError(f"exchange.edge={settings.edge:g}: {error}; must be larger") from None
