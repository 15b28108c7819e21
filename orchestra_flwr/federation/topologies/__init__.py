"""Federations without a server: graphs of nodes, and how neighbours mix their models."""

from orchestra_flwr.federation.topologies.gossip import Gossip, GossipSettings

__all__ = ["Gossip", "GossipSettings"]
