"""How a server is doing between the runs of its queue, and before the first one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from orchestra_flwr.deployment.keys.certificates import Dated
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch.federation_status import FederationStatus
from orchestra_flwr.reporting import RunFolder


class IdleStatus(FederationStatus):
    """A server without a run: who is connected, and since when it waits.

    It has all keys of a run's status, so that whoever reads that one finds no gap.

    `connected` gives the name of each connected client, None for one without a name. The folder is
    that of the queue, or of a run that is going to begin.

    Attributes:
        starting: whether a run is about to begin.
    """

    def __init__(
        self,
        config: ServerConfig,
        folder: RunFolder,
        registry: Callable[[], Iterable[str | None]],
        certificates: Iterable[Dated],
        *,
        connected: Callable[[], Collection[str | None]],
    ) -> None:
        super().__init__(config, folder, registry, certificates)
        self.rounds = 0
        self._connected = connected
        self.starting = config.queue is None

    def waits(self) -> None:
        """No run is there any more."""
        self.starting, self._since = False, time.time()

    @property
    def state(self) -> str:
        """Idle, or starting."""
        return "starting" if self.starting else "idle"

    def to_dict(self) -> dict[str, Any]:
        """As of a run, with what is known without one."""
        shown, connected = super().to_dict(), self._connected()
        run = "" if self.starting else f"a run: orchestra-submit queue={self._config.queue}"
        names = [
            {**each, "state": "here" if each["name"] in connected else "away"}
            for each in shown["names"]
        ]
        return {
            **shown,
            "method": None,
            "model": None,
            "waits_for": run,
            "clients": {**shown["clients"], "here": len(connected)},
            "names": names,
        }
