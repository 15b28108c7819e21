"""What clients make of their features for the server to cluster: one file a choice."""

from orchestra_flwr.clustering.clusterings.base import (
    LOCAL_CENTROIDS,
    MAX_POINTS,
    Clustering,
    FeaturesOf,
)

__all__ = ["LOCAL_CENTROIDS", "MAX_POINTS", "Clustering", "FeaturesOf"]
