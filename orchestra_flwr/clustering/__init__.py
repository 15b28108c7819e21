"""Clustering of features: `clusterings` on the clients, `solvers` on the server."""

from orchestra_flwr.clustering.consistency import assignment_measures, consistency
from orchestra_flwr.clustering.local_clusters import local_clustering
from orchestra_flwr.clustering.memory import FeatureMemory
from orchestra_flwr.clustering.private_kmeans import private_clustering
from orchestra_flwr.clustering.sinkhorn_knopp import sinkhorn
from orchestra_flwr.clustering.spherical import unit_rows

__all__ = [
    "FeatureMemory",
    "assignment_measures",
    "consistency",
    "local_clustering",
    "private_clustering",
    "sinkhorn",
    "unit_rows",
]
