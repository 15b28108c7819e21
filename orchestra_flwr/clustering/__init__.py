"""Clustering of features: local on the clients, private if wanted, and global on the server."""

from orchestra_flwr.clustering.consistency import assignment_measures, consistency
from orchestra_flwr.clustering.global_clusters import global_clustering
from orchestra_flwr.clustering.gradient import gradient_clustering
from orchestra_flwr.clustering.local_clusters import LocalClusters, local_clustering
from orchestra_flwr.clustering.memory import FeatureMemory
from orchestra_flwr.clustering.private import private_clustering
from orchestra_flwr.clustering.settings import ClusteringSettings, clustering_settings
from orchestra_flwr.clustering.sinkhorn import sinkhorn
from orchestra_flwr.clustering.spherical import unit_rows

__all__ = [
    "ClusteringSettings",
    "FeatureMemory",
    "LocalClusters",
    "assignment_measures",
    "clustering_settings",
    "consistency",
    "global_clustering",
    "gradient_clustering",
    "local_clustering",
    "private_clustering",
    "sinkhorn",
    "unit_rows",
]
