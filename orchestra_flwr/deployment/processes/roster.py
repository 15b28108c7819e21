"""The clients that the SuperLink accepts: those whose public keys are in the server's folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys import public_key_bytes, registered
from orchestra_flwr.deployment.processes.flower_command import Flower, FlowerError

POLL_SECONDS = 1.0


class Roster:
    """Makes the SuperLink's registered clients those of the folder of public keys.

    Args:
        flower: the command line of the SuperLink.
        folder: the folder of keys; None: plain text, where anybody may connect.
        report: takes a line about who was registered or revoked.
    """

    def __init__(self, flower: Flower, folder: Path | None, report: Callable[[str], None]) -> None:
        self._flower = flower
        self._folder = folder
        self._report = report
        self._clients: dict[str, tuple[bytes, int]] = {}  # name -> key and node id
        self._stamp: object = None

    def names(self) -> Mapping[bytes, str]:
        """The name of every registered key."""
        return {key: name for name, (key, _) in self._clients.items()}

    def update(self) -> None:
        """Registers new keys and unregisters those that were removed.

        Raises:
            ConfigError: the folder cannot be read.
            FlowerError: Flower's command failed.
        """
        if self._folder is None or (stamp := _stamp(self._folder / "clients")) == self._stamp:
            return
        self._stamp = stamp
        files = registered(self._folder)
        keys = {name: public_key_bytes(file) for name, file in files.items()}
        removed = [n for n, (key, _) in self._clients.items() if keys.get(n) != key]
        if removed:
            self._flower.unregister([self._clients.pop(name)[1] for name in removed])
            self._report(f"revoked: {', '.join(removed)}")
        new = [name for name in keys if name not in self._clients]
        if new:
            nodes = self._flower.register([(name, files[name]) for name in new])
            self._clients |= {name: (keys[name], node) for name, node in nodes.items()}
            self._report(f"registered: {', '.join(nodes) or 'none'}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Updates now, and whenever the folder changes, until the block ends."""
        self.update()
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(POLL_SECONDS):
                try:
                    self.update()
                except (ConfigError, FlowerError) as error:
                    self._report(f"the list of clients is as it was: {error}")

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _stamp(folder: Path) -> list[tuple[str, int]]:
    """Changes whenever a file of the folder does."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries)
