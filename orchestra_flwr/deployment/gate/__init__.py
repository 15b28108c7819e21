"""The gate: the only part of a server that listens on the network."""

from orchestra_flwr.deployment.gate.listening import Gate, listen
from orchestra_flwr.deployment.gate.tls import GateTls

__all__ = ["Gate", "GateTls", "listen"]
