"""What runs the clients of a simulation: one file an engine, found by its name."""

from orchestra_flwr.federation.engines.base import Engine

__all__ = ["Engine"]
