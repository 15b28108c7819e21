"""What the clients' states that enter a model become: one file an aggregation."""

from orchestra_flwr.federation.aggregations.base import Aggregation

__all__ = ["Aggregation"]
