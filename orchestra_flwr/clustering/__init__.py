"""Clustering of features: `clusterings` on the clients, `solvers` on the server."""

from orchestra_flwr.clustering.consistency import assignment_measures, consistency
from orchestra_flwr.clustering.memory import FeatureMemory
from orchestra_flwr.clustering.spherical import unit_rows

__all__ = ["FeatureMemory", "assignment_measures", "consistency", "unit_rows"]
