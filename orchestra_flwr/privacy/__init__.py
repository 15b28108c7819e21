"""Differential privacy of what clients send: noise, its cost, and records of releases."""

from orchestra_flwr.privacy.accounting import ClusteringMechanism, calibrate, spent
from orchestra_flwr.privacy.client_ledger import ClientBounds, ClientLedger
from orchestra_flwr.privacy.server_ledger import ServerLedger

__all__ = [
    "ClientBounds",
    "ClientLedger",
    "ClusteringMechanism",
    "ServerLedger",
    "calibrate",
    "spent",
]
