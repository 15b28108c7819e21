"""The clients that may take part: those whose public keys are in the server's folder."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys import public_key_bytes, registered
from orchestra_flwr.deployment.processes.flower_command import Flower, FlowerError

POLL_SECONDS = 1.0
FIRST_WAIT, LONGEST_WAIT = 2.0, 60.0  # seconds until a failed registration is tried again


class Roster:
    """Keeps the list of clients that the gate lets through in step with the folder of public keys.

    Flower's SuperLink has to know a key, too, and never forgets one: a key that was unregistered
    there is refused when it is registered again, for as long as the SuperLink runs. So nothing is
    unregistered there. A revoked key is stopped by the gate, at once, and one that is registered
    again needs nothing more than to be let through.

    Args:
        flower: the command line of the SuperLink.
        folder: the folder of keys; None: plain text, where anybody may connect.
        report: takes a line about who was registered or revoked, and about what failed.
    """

    def __init__(self, flower: Flower, folder: Path | None, report: Callable[[str], None]) -> None:
        self._flower = flower
        self._folder = folder
        self._report = report
        self._listed: Mapping[bytes, str] = {}  # the folder's keys, with the clients' names
        self._in_flower: dict[bytes, str] = {}  # the SuperLink's, with the names it has them under
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
        stamp = _stamp(self._folder / "clients")
        if stamp == self._stamp and now < self._retry_at:
            return
        if stamp != self._stamp:
            self._wait = FIRST_WAIT
        self._stamp, self._retry_at = stamp, math.inf
        try:
            problems = self._take_in(self._folder)
        except ConfigError as error:
            problems = [f"the list of clients stays as it was: {error}; trying again"]
        if problems:
            self._retry_at = now + self._wait
            self._wait = min(2 * self._wait, LONGEST_WAIT)
        for line in problems:
            if line not in self._reported:
                self._report(line)
        self._reported = problems

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Updates now, and whenever the folder changes, until the block ends."""
        self.update()
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(POLL_SECONDS):
                self.update()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _take_in(self, folder: Path) -> list[str]:
        """Reads the folder, and registers at the SuperLink what is new; what went wrong."""
        files = registered(folder)
        self._listed = {public_key_bytes(file): name for name, file in files.items()}
        self._admit()  # whoever was revoked does not wait for the slow command below
        new = [name for key, name in self._listed.items() if key not in self._in_flower]
        problems = self._register([(name, files[name]) for name in new]) if new else []
        self._admit()
        for key, name in self._listed.items():
            if (before := self._in_flower.get(key, name)) != name:
                problems.append(
                    f"client {name} cannot come in: this server knows its key as {before} until "
                    f"it is started again: register it as {before}, or start the server again"
                )
        return problems

    def _register(self, new: list[tuple[str, Path]]) -> list[str]:
        keys = {name: key for key, name in self._listed.items()}
        try:
            outcome = self._flower.register(new)
        except FlowerError as error:
            names = ", ".join(name for name, _ in new)
            return [f"clients {names} cannot be registered: {error}; trying again"]
        self._in_flower |= {keys[name]: name for name, why in outcome.items() if why is None}
        return [
            f"client {name} cannot be registered: {why}; trying again"
            for name, why in outcome.items()
            if why is not None
        ]

    def _admit(self) -> None:
        """Lets through whom both the folder and the SuperLink have, under the same name."""
        before = {name for name in self._names.values() if name is not None}
        self._names = {
            key: name if self._in_flower.get(key) == name else None
            for key, name in self._listed.items()
        }
        after = {name for name in self._names.values() if name is not None}
        for names, what in ((before - after, "revoked"), (after - before, "registered")):
            if names:
                self._report(f"{what}: {', '.join(sorted(names))}")


def _stamp(folder: Path) -> object:
    """Changes whenever a file of the folder does."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries)
    except OSError as error:  # reading it will say why, unless it has passed
        return str(error)
