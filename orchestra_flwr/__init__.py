"""Orchestra as a Flower application: unsupervised federated learning by consistent clustering."""

from orchestra_flwr.models import load_encoder

__version__ = "0.1.0"
__all__ = ["__version__", "load_encoder"]
