"""What may be learned from what is sent: how much noise a release needs, what many cost."""

from orchestra_flwr.privacy.accounting import ClusteringMechanism, calibrate, spent
from orchestra_flwr.privacy.client_ledger import ClientBounds, ClientLedger
from orchestra_flwr.privacy.ledger import Ledger
from orchestra_flwr.privacy.server_ledger import ServerLedger

__all__ = [
    "ClientBounds",
    "ClientLedger",
    "ClusteringMechanism",
    "Ledger",
    "ServerLedger",
    "calibrate",
    "spent",
]
