"""Privacy accounting: how much noise a release needs, and what many releases cost together."""

from orchestra_flwr.privacy.accounting import ClusteringMechanism, calibrate, spent
from orchestra_flwr.privacy.ledger import Ledger

__all__ = ["ClusteringMechanism", "Ledger", "calibrate", "spent"]
