"""The inline engine for small runs, Ray for all others."""

import importlib.util
from typing import Any

from orchestra_flwr.config import Config
from orchestra_flwr.federation.engines.base import Engine, Serve
from orchestra_flwr.federation.engines.inline import InlineEngine, InlineSettings
from orchestra_flwr.federation.engines.ray import RayEngine, RaySettings
from orchestra_flwr.training import usable_cpus

MIN_EPOCHS = 100  # local epochs; on digits they take about as long as Ray's start, 10 s


class AutoEngine(Engine):
    """Ray, but for runs that are small, on one core, or where it is not installed.

    A run is small with fewer than 100 local epochs, those of all clients in all rounds. Where an
    option is given, which are those of Ray, Ray is chosen. The bits are the same either way.
    """

    Settings = RaySettings

    settings: RaySettings

    def __init__(self, settings: RaySettings, config: Config) -> None:
        super().__init__(settings, config)
        reason = None if settings != RaySettings() else self._reason_against_ray()
        self.chosen: Engine = RayEngine(settings, config)
        if reason is not None:
            self.chosen = InlineEngine(InlineSettings(), config)
            self.remark = f"engine=inline was chosen: {reason}"
        self.chosen.is_over = self.is_over
        self.starts_immediately = self.chosen.starts_immediately

    @classmethod
    def is_remote(cls, settings: RaySettings) -> bool:
        """On a cluster that was joined."""
        return RayEngine.is_remote(settings)

    def check_resources(self) -> None:
        """Those of the chosen engine."""
        self.chosen.check_resources()

    def begin(self) -> None:
        """Begins the chosen engine's start."""
        self.chosen.begin()

    def end(self) -> None:
        """Ends what was begun."""
        self.chosen.end()

    def run(self, serve: Serve, clients: int) -> dict[str, Any]:
        """On the chosen engine."""
        return self.chosen.run(serve, clients)

    def _reason_against_ray(self) -> str | None:
        federation, training = self.config.federation, self.config.training
        cohort = federation.clients * federation.participation
        epochs = cohort * federation.rounds * training.local_epochs
        if importlib.util.find_spec("ray") is None:
            return "Ray is not installed"
        if usable_cpus() < 2 * training.threads:
            return "there is one core" + (" for each client" if training.threads > 1 else "")
        if epochs < MIN_EPOCHS:
            return f"{epochs:.0f} local epochs in all are fewer than {MIN_EPOCHS}"
        return None
