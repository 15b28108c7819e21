"""The inline engine for runs that would have ended before Ray has started, Ray for all others."""

from __future__ import annotations

import importlib.util
from typing import Any

from orchestra_flwr.config.sections import EngineConfig
from orchestra_flwr.federation.engines.base import Engine, Serve
from orchestra_flwr.federation.engines.inline import InlineEngine
from orchestra_flwr.federation.engines.ray import RayEngine, RaySettings
from orchestra_flwr.federation.engines.resources import available_nodes, ray_backend, worker_count
from orchestra_flwr.federation.engines.trial import seconds_of_training
from orchestra_flwr.federation.population import Population
from orchestra_flwr.reporting.text import duration

RAY_START = 10.0  # seconds until its workers can train, on two cores


class AutoEngine(Engine):
    """Chooses by the time that training takes; the bits are the same either way.

    Its options are those of Ray: where one is given, Ray is chosen.
    """

    Settings = RaySettings

    settings: RaySettings

    @classmethod
    def is_remote(cls, settings: RaySettings) -> bool:
        """As :meth:`RayEngine.is_remote`."""
        return RayEngine.is_remote(settings)

    def check_resources(self) -> None:
        """As :meth:`Engine.check_resources`."""
        (self._ray() if self._may_take_ray else self._inline()).check_resources()

    def chosen(self, population: Population) -> tuple[Engine, str | None]:
        """As :meth:`Engine.chosen`."""
        if not self._may_take_ray:
            return self._inline(), "engine=inline was chosen: Ray is not installed"
        if self.settings != RaySettings():
            return self._ray(), None
        seconds, workers = seconds_of_training(self.config, population), self._workers()
        training = f"the clients' training takes about {duration(seconds)} in one process"
        if seconds - seconds / workers > RAY_START:
            return self._ray(), f"engine=ray was chosen: {training}"
        why = (
            "and Ray would save less than its start takes"
            if workers > 1
            else "and there is one core"
        )
        return self._inline(), f"engine=inline was chosen: {training}, {why}"

    def run(self, serve: Serve, clients: int) -> dict[str, Any]:
        """As :meth:`Engine.run`; only what it chose is ever run."""
        raise NotImplementedError("run what chosen() returned")

    @property
    def _may_take_ray(self) -> bool:
        asked = self.settings != RaySettings()  # then a missing Ray is an error
        return asked or importlib.util.find_spec("ray") is not None

    def _workers(self) -> int:
        resources = ray_backend(self.config)["client_resources"]
        return worker_count(
            available_nodes(self.config), resources["num_cpus"], resources["num_gpus"]
        )

    def _ray(self) -> RayEngine:
        return RayEngine(self.settings, self.config)

    def _inline(self) -> InlineEngine:
        engine = EngineConfig(name="inline")
        settings = engine.settings
        return InlineEngine(settings, self.config.model_copy(update={"engine": engine}))
