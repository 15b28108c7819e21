"""What may be learned from what is sent: how much noise a release needs, what many cost."""

from orchestra_flwr.privacy.accounting import ClusteringMechanism, calibrate, spent
from orchestra_flwr.privacy.ledger import Ledger

__all__ = ["ClusteringMechanism", "Ledger", "calibrate", "spent"]
