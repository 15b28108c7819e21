"""Orchestra as a Flower application: unsupervised federated learning by consistent clustering."""

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

# Waiting threads of torch spin unless this is set before torch is loaded. Where other processes
# want the same cores, that makes an evaluation five times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from orchestra_flwr.config import ConfigError
    from orchestra_flwr.federation.errors import FederationError
    from orchestra_flwr.from_python import simulate
    from orchestra_flwr.models import load_encoder
    from orchestra_flwr.reporting.run_result import Result

    __version__: str
else:
    _HOMES = {
        "ConfigError": "orchestra_flwr.config",
        "FederationError": "orchestra_flwr.federation.errors",
        "Result": "orchestra_flwr.reporting.run_result",
        "load_encoder": "orchestra_flwr.models",
        "simulate": "orchestra_flwr.from_python",
    }

    def _version() -> str:
        # A checkout and Flower's app archive have pyproject.toml beside the package. The metadata
        # of an installed checkout is as old as its installation.
        project = Path(__file__).parents[1] / "pyproject.toml"
        if project.is_file():
            import tomllib

            described = tomllib.loads(project.read_text("utf-8")).get("project", {})
            if described.get("name") == "orchestra-flwr":
                return str(described["version"])
        from importlib.metadata import version

        return version("orchestra-flwr")

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return globals().setdefault(name, _version())
        # Commands that need no torch (keys, --help) must not wait seconds for its import.
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            library = (error.name or "").partition(".")[0]
            if library not in {"matplotlib", "sklearn"}:
                raise
            install = "pip install 'orchestra-flwr[server]'"
            reason = f"orchestra_flwr.{name}: {library} is not installed; {install}"
            raise ModuleNotFoundError(reason, name=library) from None

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES, "__version__"})


__all__ = ["ConfigError", "FederationError", "Result", "__version__", "load_encoder", "simulate"]
