"""What an engine is: a grid on which simulated clients answer, and the resources that they need."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from flwr.serverapp import Grid

from orchestra_flwr.config import Config, Plugin
from orchestra_flwr.federation.population import Population

# Runs the whole federation on a grid with so many clients at work at the same time.
Serve = Callable[[Grid, int], dict[str, Any]]


class Engine(Plugin, ABC):
    """Runs simulated clients.

    Args:
        settings: its own options under `engine.` in the configuration.
        config: of the run.

    Attributes:
        is_over: set when the run is to end, as by a signal: what takes long looks at it.
    """

    starts_at_once = False  # whether :meth:`run` calls `serve` without a wait

    def __init__(self, settings: Any, config: Config) -> None:
        self.settings = settings
        self.config = config
        self.is_over = threading.Event()

    @classmethod
    def is_remote(cls, settings: Any) -> bool:
        """Whether clients are trained on other machines, whose devices are others than here."""
        return False

    def check_resources(self) -> None:
        """Refuses a run for which this machine lacks something, before anything is written.

        Raises:
            ConfigError: a GPU that is not there, or a package that is not installed.
        """

    def begin(self) -> None:
        """Starts in the background what takes long and needs no images; :meth:`run` waits for it.

        Called when resources have been checked, before images are loaded. The engine that runs may
        be another object of this class.
        """

    def end(self) -> None:
        """Ends what :meth:`begin` started, whether a run has made use of it or not."""

    def chosen(self, population: Population) -> tuple[Engine, str | None]:
        """The engine that runs this population, and a line about why.

        Itself, without a line, unless it is one that leaves that to another.
        """
        return self, None

    @abstractmethod
    def run(self, serve: Serve, clients: int) -> dict[str, Any]:
        """Calls `serve` with a grid and the number of clients at work at the same time.

        Args:
            serve: the server's rounds.
            clients: how many clients the simulation has.

        Returns:
            What `serve` returned.

        Raises:
            ConfigError: resources that are not there.
            FederationError: the engine failed.
        """
