"""What the server makes of all clients' local centroids: one file a solver."""

from orchestra_flwr.clustering.solvers.base import Solver

__all__ = ["Solver"]
