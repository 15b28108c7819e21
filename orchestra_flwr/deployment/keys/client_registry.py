"""The server's list of clients that may take part: one ``clients/NAME.pub`` each.

A running server watches that folder, so that a file appears there whole or not at all.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys.client_keys import PublicKey, check_name, load_public_key
from orchestra_flwr.deployment.keys.key_files import NewFile

logger = logging.getLogger(__name__)


def registered(folder: Path) -> dict[str, Path]:
    """The files of the clients registered in `folder`, by name and in the names' order.

    A file that is no valid key, has no client's name, or repeats the key of another is skipped
    with a warning in the log.

    Raises:
        ConfigError: the list cannot be read.
    """
    return {name: path for name, (path, _) in registered_keys(folder).items()}


def registered_keys(folder: Path) -> dict[str, tuple[Path, PublicKey]]:
    """As :func:`registered`, with the keys that were read.

    Raises:
        ConfigError: the list cannot be read.
    """
    clients = folder / "clients"
    try:
        paths = [path for path in clients.iterdir() if path.suffix == ".pub"]
    except FileNotFoundError:
        return {}
    except OSError as error:  # must not look as if every client had been revoked
        raise ConfigError(f"{clients} cannot be read: {error.strerror}") from None
    found: dict[str, tuple[Path, PublicKey]] = {}
    owners: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: path.stem):
        try:
            name, key = check_name(path.stem), load_public_key(path)
        except ConfigError as error:
            logger.warning("%s is skipped: %s", path, error)
            continue
        if owners.setdefault(key.text, name) != name:
            logger.warning("%s is skipped: the same key as %s", path, owners[key.text])
            continue
        found[name] = (path, key)
    return found


def plan_registration(folder: Path, key: PublicKey, name: str) -> list[NewFile]:
    """The file that registers `key` as `name`: none where it is registered so already.

    Raises:
        ConfigError: the name is none or another key's, or the key has another name.
    """
    check_name(name)
    clients = registered_keys(folder)
    for other, (_, other_key) in clients.items():
        if other_key.text == key.text:
            if other == name:
                return []
            raise ConfigError(f"this key is registered already, under the name {other}")
    path = client_path(folder, name)
    if name in clients:
        raise ConfigError(
            f"the name {name} is taken by another key ({clients[name][1].fingerprint}): "
            "choose another name, or revoke that one first"
        )
    if path.exists():
        raise ConfigError(f"{path} is there but no valid key: revoke {name} first")
    return [NewFile(path, replace(key, comment=name).line)]


def client_path(folder: Path, name: str) -> Path:
    """Where a client of that name is registered.

    Raises:
        ConfigError: no name of a client.
    """
    return folder / "clients" / f"{check_name(name)}.pub"


def revoke(folder: Path, name: str) -> None:
    """Takes a client off the list.

    Raises:
        ConfigError: it is not on it.
        OSError: it cannot be removed.
    """
    try:
        client_path(folder, name).unlink()
    except FileNotFoundError:
        raise ConfigError(f"no client {name} is registered in {folder} (see list)") from None
