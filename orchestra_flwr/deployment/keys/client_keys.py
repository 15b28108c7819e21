"""Clients' key pairs, and the server's list of those that may take part.

A client proves itself to Flower's SuperLink by an ECDSA key pair in OpenSSH's format. Its name is
the comment of its public key; at the server it is the name of the file ``clients/NAME.pub``.
"""

import base64
import hashlib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys.certificates import Dated, load_authorities
from orchestra_flwr.deployment.keys.key_files import COMMAND, NewFile, quoted, read, warn_if_open
from orchestra_flwr.fingerprints import fingerprint_of

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
NAME_RULE = "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or a digit"
# The key types of OpenSSH that Flower accepts: the NIST curves.
KEY_TYPES = ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")


@dataclass(frozen=True)
class ClientFiles:
    """What a client needs to reach its server and to prove itself."""

    ca: Path
    key: Path
    public: Path
    name: str
    dated: tuple[Dated, ...] = field(default=(), compare=False)  # the authorities it trusts


@dataclass(frozen=True)
class PublicKey:
    """A client's public key and its comment."""

    key: ec.EllipticCurvePublicKey
    comment: str

    @classmethod
    def parse(cls, data: bytes, source: str) -> Self:
        """Reads OpenSSH's one-line format; `source` is what an error calls it.

        Raises:
            ConfigError: a private key, another kind of key, several keys, or damaged.
        """
        if b"PRIVATE KEY-----" in data:
            raise ConfigError(
                f"{source} is a private key, which must not leave its machine: "
                "give the public one (client.pub)"
            )
        lines = data.decode("utf-8-sig", errors="replace").strip().splitlines()
        words = lines[0].split(maxsplit=2) if lines else []
        if len(words) < 2 or words[0] not in KEY_TYPES:
            raise ConfigError(
                f"{source} is no ECDSA public key in OpenSSH's format "
                f"(one line: {KEY_TYPES[1]} AAAA... NAME)"
            )
        if len(lines) > 1:
            raise ConfigError(f"{source} holds {len(lines)} lines: give one key at a time")
        try:
            key = load_ssh_public_key(" ".join(words[:2]).encode())
        # A damaged point can also end in the last two.
        except (ValueError, UnsupportedAlgorithm, NotImplementedError, IndexError):
            raise ConfigError(f"{source} is a damaged public key: copy it once more") from None
        assert isinstance(key, ec.EllipticCurvePublicKey)  # its type was checked above
        return cls(key, words[2].strip() if len(words) > 2 else "")

    @property
    def text(self) -> str:
        """Type and key as OpenSSH writes them, without the comment."""
        return self.key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()

    @property
    def fingerprint(self) -> str:
        """The fingerprint as ``ssh-keygen -l`` prints it."""
        return key_fingerprint(self.key)

    @property
    def pem(self) -> bytes:
        """The form in which Flower sends, stores and compares it."""
        return self.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @property
    def line(self) -> bytes:
        """The line of a ``.pub`` file."""
        return f"{self.text} {self.comment}\n".encode()


def key_fingerprint(key: PublicKeyTypes) -> str:
    """The fingerprint of a public key as ``ssh-keygen -l`` prints it: ``SHA256:...``.

    Raises:
        UnsupportedAlgorithm: OpenSSH has no such kind of key.
    """
    line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def load_public_key(path: Path) -> PublicKey:
    """Reads a ``.pub`` file; errors as in :meth:`PublicKey.parse`.

    Raises:
        ConfigError: missing, unreadable or no ECDSA public key in OpenSSH's format.
    """
    remedy = f"a client makes its key with: {COMMAND} client folder=FOLDER"
    return PublicKey.parse(read(path, remedy), str(path))


def check_name(name: str) -> str:
    """A client's name; raises a :class:`ConfigError` where it does not match `NAME_PATTERN`."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(f"{name!r} is no name of a client: {NAME_RULE}")
    return name


def client_files(folder: Path) -> ClientFiles:
    """A client's files, checked.

    Raises:
        ConfigError: a file is missing or damaged, the key pair does not match, it has no proper
            name, or the server's authority has expired; says what to do.
    """
    ca, key, public = folder / "ca.crt", folder / "client.key", folder / "client.pub"
    make = f"make client.key and client.pub with: {COMMAND} client folder={quoted(folder)}"
    authorities = load_authorities(ca, "copy ca.crt from the server's folder to this place")
    private = load_private_key(key, make)
    data = read(public, f"put it back, or delete {key.name} and {make}")
    published = PublicKey.parse(data, str(public))
    if private.public_key() != published.key:
        raise ConfigError(
            f"{public} is not the public key of {key}: "
            f"put the right one back, or delete both and {make}"
        )
    if not re.fullmatch(NAME_PATTERN, published.comment):
        raise ConfigError(
            f"{public} ends in {published.comment!r}: put the client's name there ({NAME_RULE})"
        )
    warn_if_open(key)
    return ClientFiles(ca, key, public, published.comment, tuple(authorities))


def new_client(folder: Path, name: str | None = None) -> tuple[PublicKey, list[NewFile]]:
    """A new key pair for `folder`, not yet written; its name is the comment of the public key.

    Without `name` it is derived from the key: unique and permanent. It says nothing of the
    machine, since it appears at the server and in its log.

    Raises:
        ConfigError: the folder holds a key already, or the name is not valid.
    """
    if name is not None:
        check_name(name)
    key_path, public_path = folder / "client.key", folder / "client.pub"
    for path in (key_path, public_path):
        if path.exists():
            raise ConfigError(
                f"{path} exists already: a client keeps its key; for another one, which has to be "
                "registered, remove client.key and client.pub"
            )
    private = ec.generate_private_key(ec.SECP384R1())
    public = PublicKey(private.public_key(), "")
    unique = fingerprint_of(public.text, digits=6)
    public = replace(public, comment=name or default_name(unique))
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    files = [NewFile(key_path, pem, private=True), NewFile(public_path, public.line)]
    return public, files


def default_name(unique: str) -> str:
    """The name of a client that was given none; `unique` is a few letters and digits."""
    return f"client-{unique}"


def load_private_key(path: Path, remedy: str) -> ec.EllipticCurvePrivateKey:
    """A client's private key; raises a :class:`ConfigError` as :func:`client_files`."""
    data = read(path, remedy)
    try:
        key = load_ssh_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm, NotImplementedError, IndexError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"{path} is no ECDSA key in OpenSSH's format, or has a passphrase, or is damaged: "
            + remedy
        )
    return key
