"""The inline engine for small runs, Ray for all others."""

import importlib.util
import math
from typing import Any

from orchestra_flwr.config import Config
from orchestra_flwr.federation.engines import Engine, Serve
from orchestra_flwr.federation.engines.inline import InlineEngine
from orchestra_flwr.federation.engines.ray import RayEngine, RayIsMissingError
from orchestra_flwr.federation.engines.resources import against_one_gpu
from orchestra_flwr.training import cores_for_clients

# Local epochs on images of 32 pixels; on digits they take about as long as Ray's start, 10 s.
MIN_EPOCHS, PIXELS = 100, 32


class AutoEngine(Engine):
    """Ray, but inline for small runs, where cores or memory hold one client at a time, on one of
    several GPUs that the run names, and where Ray is missing or does not start.

    A run is small with fewer than 100 local epochs, counted over all clients and rounds; a fourth
    of that for images with four times the pixels. If one of Ray's options is given, Ray is chosen
    and must start. The results are the same bits either way.
    """

    Settings = RayEngine.Settings

    def __init__(self, settings: RayEngine.Settings, config: Config) -> None:
        super().__init__(settings, config)
        self._may_choose = settings == self.Settings()
        reason = self._reason_against_ray() if self._may_choose else None
        self.chosen: Engine = RayEngine(settings, config, tries=1 if self._may_choose else 2)
        self.chosen.is_over = self.is_over
        if reason is not None:
            self.remark = self._choose_inline(reason)
        self.starts_immediately = self.chosen.starts_immediately

    @classmethod
    def is_remote(cls, settings: RayEngine.Settings) -> bool:
        return RayEngine.is_remote(settings)

    def check_resources(self) -> None:
        self.chosen.check_resources()

    def begin(self) -> None:
        self.chosen.begin()

    def end(self) -> None:
        self.chosen.end()

    def run(self, serve: Serve, clients: int) -> dict[str, Any]:
        """On the chosen engine; on the inline one where Ray does not start.

        Raises:
            FederationError: as the chosen engine, or Ray does not start and its options are given.
        """
        try:
            return self.chosen.run(serve, clients)
        except RayIsMissingError as error:
            if not self._may_choose:
                raise
            self.message(self._choose_inline(f"Ray does not start here: {error.reason}"))
        return self.chosen.run(serve, clients)

    def _choose_inline(self, reason: str) -> str:
        self.chosen = InlineEngine(InlineEngine.Settings(), self.config)
        self.chosen.is_over = self.is_over
        return f"engine=inline was chosen: {reason}"

    def _reason_against_ray(self) -> str | None:
        federation, training = self.config.federation, self.config.training
        cohort = federation.clients * federation.participation
        epochs = cohort * federation.rounds * training.local_epochs
        if importlib.util.find_spec("ray") is None:
            return "Ray is not installed"
        if cores_for_clients(training.threads) < 2 * training.threads:
            return "this machine's cores and memory hold one client at a time"
        size = self.config.data.view_size
        needed = math.ceil(MIN_EPOCHS * min(1, PIXELS / size) ** 2)
        if epochs < needed:
            return f"{epochs:.0f} local epochs in all are fewer than {needed}"
        return against_one_gpu(self.config)
