"""Frozen weights, which nobody trains: a client gets them at most once, and then their digest.

Simulated clients read them where the server has written them. A real client is sent them with its
first task, unless it says that it has them. It stores them in a file named by their digest.
"""

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.fields import FROZEN, FROZEN_FOLDER
from orchestra_flwr.files import make_private_folder, write_atomically

SUFFIX = ".float32"
KEPT = 3  # weights of so many networks: a client may take part in other runs in between

# After these a client does not have the weights that its task spoke of, or could not store them.
NOT_STORED = {Failure.WEIGHTS_MISSING, Failure.DISK_FULL}


class WeightsMissingError(ValueError):
    """A task names frozen weights that did not come with it and are not stored here."""


def digest_of(values: np.ndarray) -> str:
    """The SHA-256, in hexadecimal, of (size,) float32 values."""
    return hashlib.sha256(np.ascontiguousarray(values, np.float32).data).hexdigest()


class FrozenStore:
    """A folder with frozen weights, those of the latest runs: `<digest>.float32`.

    Anybody may put a file there that came by another way, a USB stick for example.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def digest(self) -> str:
        """That of the latest weights in the folder; "" without any."""
        return next((file.stem for file in self._newest_first()), "")

    def load(self, digest: str) -> np.ndarray | None:
        """(size,) float32, memory-mapped and read-only; None: not here, or damaged.

        Raises:
            ValueError: this is no digest; a server sends it, and it might name another file.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ValueError(f"frozen={digest!r}: must be a SHA-256 in hexadecimal")
        try:
            return _checked(self._folder / f"{digest}{SUFFIX}")
        except (OSError, ValueError):
            return None

    def save(self, values: np.ndarray) -> str:
        """Writes (size,) float32 values and returns their digest. The latest `KEPT` stay.

        Raises:
            OSError: names the file.
        """
        digest = digest_of(values)
        make_private_folder(self._folder)
        file = self._folder / f"{digest}{SUFFIX}"
        write_atomically(file, values.tobytes(), mode=0o600)
        for old in self._newest_first()[KEPT:]:
            old.unlink()
        return digest

    def _newest_first(self) -> list[Path]:
        files = self._folder.glob(f"*{SUFFIX}")
        return sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)


@lru_cache(maxsize=2)  # all clients in a process of a simulation read the same file
def _checked(file: Path) -> np.ndarray:
    values = np.memmap(file, np.float32, "r")
    if digest_of(values) != file.stem:
        raise ValueError(f"{file} is damaged")
    return values


@dataclass(frozen=True)
class FrozenWeights:
    """The frozen weights of a run, at the server."""

    values: np.ndarray  # (size,) float32
    digest: str  # of the values
    # Where clients that share the server's disk find them; None: clients are sent them
    folder: Path | None
    holders: set[str] = field(default_factory=set)  # names of the clients that have them

    @property
    def entries(self) -> dict[str, str]:
        """What every task says of them."""
        place = {} if self.folder is None else {FROZEN_FOLDER: str(self.folder.resolve())}
        return {FROZEN: self.digest, **place}

    def heard_from(self, client: str, code: int | None) -> None:
        """Notes whether a client has the weights, by the code of its error; None: it did its task.

        It stores them before anything else, so one that fails later has them. What an error of
        Flower's own means nobody knows: its node is greeted anew, and then says what it has.
        """
        failure = None if code is None else Failure.of(code)
        if failure in NOT_STORED:
            self.holders.discard(client)
        elif code is None or failure:
            self.holders.add(client)
