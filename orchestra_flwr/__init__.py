"""Orchestra as a Flower application: unsupervised federated learning by consistent clustering."""

import importlib
import os
from typing import TYPE_CHECKING

# Waiting threads of torch spin unless this is set before torch is loaded. Where other processes
# want the same cores, that makes an evaluation five times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from orchestra_flwr.from_python import simulate
    from orchestra_flwr.models import load_encoder
    from orchestra_flwr.reporting.run_result import Result
else:
    _HOMES = {
        "Result": "orchestra_flwr.reporting.run_result",
        "load_encoder": "orchestra_flwr.models",
        "simulate": "orchestra_flwr.from_python",
    }

    def __getattr__(name: str) -> object:
        # Commands that need no torch (keys, --help) must not wait seconds for its import.
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})


__version__ = "0.1.0"
__all__ = ["Result", "__version__", "load_encoder", "simulate"]
