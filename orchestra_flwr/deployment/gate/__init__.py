"""The gate: the only part of a server that listens on the network."""

from orchestra_flwr.deployment.gate.listening import Gate

__all__ = ["Gate"]
