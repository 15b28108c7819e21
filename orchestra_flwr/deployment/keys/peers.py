"""The registered keys of all clients, which each has in its folder as ``peers.pem``.

With it a client knows, in secure aggregation, that the server did not invent the others. The file
is made where clients are registered, and brought to them as ``ca.crt`` is, but not by the running
server, against which it guards. Without it a client can only trust that the server follows the
protocol.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys.client_keys import (
    NAME_PATTERN,
    ClientFiles,
    PublicKey,
    check_name,
    load_private_key,
    load_public_key,
)
from orchestra_flwr.deployment.keys.key_files import COMMAND, NewFile, read

FILE = "peers.pem"
KEY = r"-----BEGIN PUBLIC KEY-----\n[A-Za-z0-9+/=\n]+-----END PUBLIC KEY-----\n"
PART = rf"({NAME_PATTERN})\n({KEY})"
HASH = ec.ECDSA(SHA384())


@dataclass(frozen=True)
class Signatures:
    """How a client signs, and checks what others signed."""

    sign: Callable[[bytes], bytes] | None = None  # by its registered key
    # Whether the client of a name signed some bytes; None: there is no ``peers.pem``.
    verify: Callable[[str, bytes, bytes], bool] | None = None
    peers: int = 0  # how many keys it holds


NO_SIGNATURES = Signatures()  # of a client without keys


def signatures(files: ClientFiles) -> Signatures:
    """The signatures of a client with these files.

    Raises:
        ConfigError: ``peers.pem`` is damaged, or does not hold this client's own key.
    """
    private = load_private_key(files.key, "put it back as it was")

    def sign(statement: bytes) -> bytes:
        return private.sign(statement, HASH)

    path = files.key.parent / FILE
    if not path.exists():
        return Signatures(sign)
    keys = read_peers(path)
    own = keys.get(files.name)
    if own is None or own != private.public_key():
        raise ConfigError(
            f"{path} does not hold the key of {files.name}: register it at the server, make the "
            f"file anew there ({COMMAND} peers), and copy it to this place"
        )

    def verify(name: str, statement: bytes, signature: bytes) -> bool:
        try:
            keys[name].verify(signature, statement, HASH)
        except (KeyError, InvalidSignature):
            return False
        return True

    return Signatures(sign, verify, len(keys))


def is_signed(folder: Path, name: str, statement: bytes, signature: bytes) -> bool:
    """Whether the key that a server's folder has registered under a name signed some bytes."""
    try:
        key = load_public_key(folder / "clients" / f"{check_name(name)}.pub").key
        key.verify(signature, statement, HASH)
    except (ConfigError, InvalidSignature):
        return False
    return True


def peers_file(folder: Path, keys: Mapping[str, PublicKey]) -> NewFile:
    """The file for all clients, not yet written, of registered keys by name."""
    parts = [f"{name}\n{key.pem.decode()}" for name, key in keys.items()]
    return NewFile(folder / FILE, "".join(parts).encode(), replace=True)


def read_peers(path: Path) -> dict[str, ec.EllipticCurvePublicKey]:
    """Clients' public keys by name.

    Raises:
        ConfigError: it is damaged, or has a name or a key twice.
    """
    remedy = f"copy it once more; it is made by: {COMMAND} peers"
    text = read(path, remedy).decode(errors="replace")
    parts = re.findall(PART, text)
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    try:
        loaded = {name: load_pem_public_key(pem.encode()) for name, pem in parts}
    except ValueError:
        loaded = {}
    for name, key in loaded.items():
        if isinstance(key, ec.EllipticCurvePublicKey) and key not in keys.values():
            keys[name] = key
    whole = "".join(f"{name}\n{pem}" for name, pem in parts) == text
    if not keys or not whole or len(keys) < len(parts):
        raise ConfigError(f"{path} is no list of clients' keys, or is damaged: {remedy}")
    return keys
