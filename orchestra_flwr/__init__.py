"""Orchestra as a Flower application: unsupervised federated learning by consistent clustering."""

import os
from typing import TYPE_CHECKING

# Waiting threads of torch spin unless this is set before torch is loaded. Where other processes
# want the same cores, that makes an evaluation five times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from orchestra_flwr.models import load_encoder
else:

    def __getattr__(name: str) -> object:
        # Commands that need no torch (keys, --help) must not wait seconds for its import.
        if name != "load_encoder":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from orchestra_flwr.models import load_encoder

        return load_encoder


__version__ = "0.1.0"
__all__ = ["__version__", "load_encoder"]
