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
    """Keeps the SuperLink's registered clients equal to the folder of public keys.

    Args:
        flower: the command line of the SuperLink.
        folder: the folder of keys; None: plain text, where anybody may connect.
        tell: told, in a line, who was registered or revoked.
    """

    def __init__(self, flower: Flower, folder: Path | None, tell: Callable[[str], None]) -> None:
        self._flower = flower
        self._folder = folder
        self._tell = tell
        self._known: dict[str, tuple[bytes, int]] = {}  # name -> key and node id
        self._seen: object = None

    def names(self) -> Mapping[bytes, str]:
        """The name of every registered key."""
        return {key: name for name, (key, _) in self._known.items()}

    def update(self) -> None:
        """Registers keys that have come and unregisters those that have gone.

        Raises:
            ConfigError: the folder cannot be read.
            FlowerError: Flower's command failed.
        """
        if self._folder is None or (seen := _stamp(self._folder / "clients")) == self._seen:
            return
        self._seen = seen
        files = registered(self._folder)
        keys = {name: public_key_bytes(file) for name, file in files.items()}
        gone = [n for n, (key, _) in self._known.items() if keys.get(n) != key]
        if gone:
            self._flower.unregister([self._known.pop(name)[1] for name in gone])
            self._tell(f"revoked: {', '.join(gone)}")
        new = [name for name in keys if name not in self._known]
        if new:
            nodes = self._flower.register([(name, files[name]) for name in new])
            self._known |= {name: (keys[name], node) for name, node in nodes.items()}
            self._tell(f"registered: {', '.join(nodes) or 'none'}")

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
                    self._tell(f"the list of clients is as it was: {error}")

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
