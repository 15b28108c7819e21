"""The clients that may take part: those whose public keys are in the server's folder."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from orchestra_flwr.deployment.keys.client_keys import PublicKey
from orchestra_flwr.deployment.keys.client_registry import registered_since, stamp_of
from orchestra_flwr.deployment.processes.recurring import recurring
from orchestra_flwr.flower.superlink_control import SuperLinkControl, SuperLinkError

POLL_SECONDS = 1.0
FIRST_WAIT, MAX_WAIT = 2.0, 60.0  # seconds until a failed registration is tried again


class AdmittedClients:
    """Keeps the list of clients that the gate lets through in step with the folder of public keys.

    Flower's SuperLink has to know a key, too, and never forgets one: a key that was unregistered
    there is refused when it is registered again, for as long as the SuperLink runs. So nothing is
    unregistered there. A revoked key is stopped by the gate, at once, and one that is registered
    again, under whatever name, needs nothing more than to be let through: a run takes names from
    the folder, and not from Flower. Without a folder anybody may connect.
    """

    def __init__(
        self, control: SuperLinkControl, folder: Path | None, report: Callable[[str], None]
    ) -> None:
        self._control = control
        self._folder = folder
        self._report = report
        self._clients: Mapping[str, PublicKey] = {}  # the folder's, by name
        self._listed: Mapping[bytes, str] = {}  # their names by their keys
        self._in_flower: set[bytes] = set()  # the SuperLink's keys
        self._names: Mapping[bytes, str | None] = {}
        self._stamp: object = None
        self._reported: list[str] = []
        self._wait = FIRST_WAIT
        self._retry_at = math.inf

    def names(self) -> Mapping[bytes, str | None]:
        """The name of every listed key; None: the SuperLink does not have it yet."""
        return self._names

    def update(self) -> None:
        """Takes in what has changed, and tries again what has failed, less and less often."""
        if self._folder is None:
            return
        now = time.monotonic()
        stamp = stamp_of(self._folder)
        if stamp == self._stamp and now < self._retry_at:
            return
        if stamp != self._stamp:
            self._wait = FIRST_WAIT
        self._stamp, self._retry_at = stamp, math.inf
        try:
            problems = self._read(self._folder)
        except Exception as error:  # of whatever kind: without this thread nobody is revoked
            problems = [f"the list of clients stays as it was: {error}; trying again"]
        if problems:
            self._retry_at = now + self._wait
            self._wait = min(2 * self._wait, MAX_WAIT)
        for line in problems:
            if line not in self._reported:
                self._report(line)
        self._reported = problems

    def watching(self) -> AbstractContextManager[None]:
        """Updates now, and whenever the folder changes, until the block ends."""
        return recurring(self.update, POLL_SECONDS)

    def _read(self, folder: Path) -> list[str]:
        """Reads the folder, and registers new keys at the SuperLink; returns what went wrong."""
        self._clients, unreadable = registered_since(folder, self._clients)
        self._listed = {key.pem: name for name, key in self._clients.items()}
        self._admit()  # a client that was revoked does not wait for the others' registration
        missing = {name: key for key, name in self._listed.items() if key not in self._in_flower}
        problems = [f"{line}; it counts as it was; trying again" for line in unreadable]
        if missing:
            problems += self._register(missing)
            self._admit()
        return problems

    def _register(self, missing: Mapping[str, bytes]) -> list[str]:
        try:
            objections = self._control.register(missing)
        except SuperLinkError as error:
            return [f"clients {', '.join(missing)} cannot be registered: {error}; trying again"]
        self._in_flower |= {key for name, key in missing.items() if objections[name] is None}
        return [
            f"client {name} cannot be registered: {objection}; trying again"
            for name, objection in objections.items()
            if objection is not None
        ]

    def _admit(self) -> None:
        """Admits the clients that both the folder and the SuperLink have."""
        former = set(self._names.values())
        self._names = {
            key: name if key in self._in_flower else None for key, name in self._listed.items()
        }
        admitted = set(self._names.values())
        for names, change in ((former - admitted, "revoked"), (admitted - former, "registered")):
            if named := sorted(name for name in names if name is not None):
                self._report(f"{change}: {', '.join(named)}")
