"""The server's list of clients that may take part: one ``clients/NAME.pub`` each.

A running server watches that folder: a file appears there whole or not at all.
"""

import logging
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys.client_keys import PublicKey, check_name, load_public_key
from orchestra_flwr.deployment.keys.key_files import NewFile, UnreadableError
from orchestra_flwr.files import sync_folder

logger = logging.getLogger(__name__)
AGAIN_SECONDS = 60.0  # after which a file that could not be read is read again


def registered(folder: Path) -> dict[str, PublicKey]:
    """The keys of the clients registered in `folder`, by name and in the names' order.

    A file that is no valid key, has no client's name, or repeats the key of another is skipped
    with a warning in the log.

    Raises:
        ConfigError: the list cannot be read.
    """
    clients, unreadable = registered_since(folder, {})
    for line in unreadable:
        logger.warning("%s", line)
    return clients


def registered_since(
    folder: Path, before: Mapping[str, PublicKey]
) -> tuple[dict[str, PublicKey], list[str]]:
    """As :func:`registered`, and a line about each file that cannot be read now.

    That may pass, and must not look as if the client had been revoked: its key is the one that it
    had `before`.
    """
    files = folder / "clients"
    try:
        paths = [path for path in files.iterdir() if path.suffix == ".pub"]
    except FileNotFoundError:
        return {}, []
    except OSError as error:  # must not look as if every client had been revoked
        raise ConfigError(f"{files} cannot be read: {error.strerror}") from None
    clients: dict[str, PublicKey] = {}
    owners: dict[str, str] = {}
    unreadable: list[str] = []
    for path in sorted(paths, key=lambda path: path.stem):
        try:
            name, key = check_name(path.stem), load_public_key(path)
        except UnreadableError as error:
            unreadable.append(str(error))
            if (name := path.stem) not in before:
                continue
            key = before[name]
        except ConfigError as error:
            logger.warning("%s is skipped: %s", path, error)
            continue
        if owners.setdefault(key.text, name) != name:
            logger.warning("%s is skipped: the same key as %s", path, owners[key.text])
            continue
        clients[name] = key
    return clients, unreadable


class RegisteredNames:
    """The clients' names by their keys, as the list is now; `folder` as of :func:`registered`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp: object = None
        self._clients: dict[str, PublicKey] = {}
        self._names: dict[bytes, str] = {}
        self._read_again = math.inf  # when, by time.monotonic

    def __call__(self) -> Mapping[bytes, str]:
        """By the keys' PEM; the files are read where one has changed, or could not be read."""
        stamp, now = stamp_of(self._folder), time.monotonic()
        if stamp != self._stamp or now >= self._read_again:
            with suppress(ConfigError):  # it cannot be read now: it counts as it was
                self._clients, unreadable = registered_since(self._folder, self._clients)
                self._names = {key.pem: name for name, key in self._clients.items()}
                self._stamp = stamp
                self._read_again = now + AGAIN_SECONDS if unreadable else math.inf
        return self._names


def stamp_of(folder: Path) -> object:
    """A value that changes whenever the list does."""
    try:
        with os.scandir(folder / "clients") as entries:
            return sorted((entry.name, _changed(entry)) for entry in entries)
    except OSError as error:  # reading it will say why, unless it has passed
        return str(error)


def _changed(entry: os.DirEntry[str]) -> tuple[int, ...]:
    """What differs when a file was changed; nothing of a link that leads nowhere, such as an
    editor's lock, which must not hide what becomes of the others."""
    try:
        status = entry.stat()
    except OSError:
        return ()
    # `cp -p` and `rsync -t` give a new key the time of the file that it was copied from.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def plan_registration(folder: Path, key: PublicKey, name: str) -> list[NewFile]:
    """The file that registers `key` as `name`: none where it is registered so already.

    Raises:
        ConfigError: the name is not valid or another key's, or the key has another name.
    """
    path = path_of(folder, name)
    clients = registered(folder)
    for other, registered_key in clients.items():
        if registered_key.text == key.text:
            if other == name:
                return []
            raise ConfigError(f"this key is registered already, under the name {other}")
    if name in clients:
        raise ConfigError(
            f"the name {name} is taken by another key ({clients[name].fingerprint}): "
            "choose another name, or revoke that one first"
        )
    if path.exists():
        raise ConfigError(f"{path} is there but no valid key: revoke {name} first")
    return [NewFile(path, replace(key, comment=name).line)]


def revoke(folder: Path, name: str) -> None:
    """Takes a client off the list; a power cut does not bring it back.

    Raises:
        ConfigError: no name of a client, or none that is registered.
        OSError: it cannot be removed.
    """
    try:
        path = path_of(folder, name)
        path.unlink()
        sync_folder(path.parent)
    except FileNotFoundError:
        raise ConfigError(f"no client {name} is registered in {folder} (see list)") from None


def path_of(folder: Path, name: str) -> Path:
    """The file of a client, whose modification time is that of the registration."""
    return folder / "clients" / f"{check_name(name)}.pub"
