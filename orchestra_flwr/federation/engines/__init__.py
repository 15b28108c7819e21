"""What an engine is: a grid on which simulated clients answer, and the resources that they need."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from flwr.serverapp import Grid

from orchestra_flwr.config import Config, Plugin

# Runs the whole federation on a grid with so many clients at work at the same time.
Serve = Callable[[Grid, int], dict[str, Any]]


class Engine(Plugin, ABC):
    """Runs simulated clients.

    Args:
        settings: its own options under `engine.` in the configuration.
        config: of the run.

    Attributes:
        is_over: set when the run is to end, for instance by a signal; long work checks it.
        starts_immediately: whether :meth:`run` calls `serve` without a wait.
        remark: a line about this engine that the run begins with, if there is something to say.
        message: shows a line to a person while :meth:`run` is at work.
    """

    starts_immediately = False
    remark: str | None = None

    def __init__(self, settings: Any, config: Config) -> None:
        self.settings = settings
        self.config = config
        self.is_over = threading.Event()
        self.message: Callable[[str], None] = lambda text: None

    @classmethod
    def is_remote(cls, settings: Any) -> bool:
        """Whether clients train on other machines, whose devices may differ from those here."""
        return False

    def check_resources(self) -> None:
        """Refuses a run for which this machine lacks something, before anything is written.

        Raises:
            ConfigError: a GPU that is not there, or a package that is not installed.
        """

    def begin(self) -> None:
        """Starts in the background what takes long and needs no images; :meth:`run` waits for it.

        Called when resources have been checked, before images are loaded.
        """

    def end(self) -> None:
        """Ends what :meth:`begin` started, whether a run has made use of it or not."""

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
