"""The files that a server needs for TLS: checked when it starts, made or renewed by the command.

A folder holds ``ca.crt`` (what clients trust), ``ca.key`` (signs server certificates, is needed for
nothing else), ``server.crt`` and ``server.key`` (used by the gate and by Flower's SuperLink).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys.certificates import (
    Authority,
    Dated,
    certificate_hosts,
    certificate_pem,
    is_signed_by,
    load_authorities,
    load_authority,
    load_certificates,
    load_private_key,
    new_authority,
    new_server_certificate,
    parse_host,
    private_pem,
)
from orchestra_flwr.deployment.keys.key_files import COMMAND, NewFile, quoted, warn_if_open

DEFAULT_DAYS, MAX_DAYS = 825, 3650  # that a server's certificate is valid
SUPERLINK = "127.0.0.1"  # where gate and server reach it with this certificate
LOCAL_HOSTS = ("localhost", SUPERLINK, "::1")


@dataclass(frozen=True)
class ServerFiles:
    """What a server needs for TLS."""

    ca: Path
    certificate: Path
    key: Path
    dated: tuple[Dated, ...] = field(default=(), compare=False)  # what was read, once checked

    @classmethod
    def of(cls, folder: Path) -> Self:
        """The files' paths, whether they exist or not."""
        return cls(folder / "ca.crt", folder / "server.crt", folder / "server.key")


@dataclass(frozen=True)
class ServerPlan:
    """A server's new files, not yet written."""

    files: list[NewFile]
    authority: Authority
    authority_existed: bool
    certificate: x509.Certificate


def server_files(folder: Path) -> ServerFiles:
    """The server's certificate files, checked. The authority's key need not be there.

    Raises:
        ConfigError: a file is missing, unreadable, expired or not yet valid, they do not belong
            together, or the certificate does not cover this machine as well; says what to do.
    """
    files = ServerFiles.of(folder)
    remedy = f"make it with: {COMMAND} server folder={quoted(folder)} host=HOST"
    authorities = load_authorities(files.ca, remedy)
    certificate = load_certificates(files.certificate, remedy)[0]
    server = Dated(files.certificate, certificate, f"{remedy}, and start the server again")
    server.check()
    key = load_private_key(files.key, remedy)
    if not any(is_signed_by(certificate, authority.certificate) for authority in authorities):
        raise ConfigError(f"{files.certificate} is not signed by {files.ca}: {remedy}")
    if key.public_key() != certificate.public_key():
        raise ConfigError(f"{files.key} is not the key of {files.certificate}: {remedy}")
    if SUPERLINK not in certificate_hosts(certificate):
        raise ConfigError(
            f"{files.certificate} is not for {SUPERLINK}, where the SuperLink behind the gate "
            f"shows it, too: {remedy}"
        )
    warn_if_open(files.key)
    return replace(files, dated=(*authorities, server))


def plan_server(folder: Path, hosts: Sequence[str], days: int) -> ServerPlan:
    """A new certificate for the server's own key, signed by the folder's authority.

    What is missing (authority, server key) is made. Without `hosts`, those of the certificate
    that is replaced are kept.

    Raises:
        ConfigError: a wrong host, or files in the folder that do not fit.
    """
    paths = ServerFiles.of(folder)
    ca_key_path = folder / "ca.key"
    existed = paths.ca.exists() or ca_key_path.exists()
    if not existed and (paths.certificate.exists() or paths.key.exists()):
        raise ConfigError(
            f"{folder} holds a server's certificate or key but no ca.crt and ca.key: "
            "put them back, or choose another folder"
        )
    if not hosts:
        if not paths.certificate.exists():
            raise ConfigError("host: must be given, a host name or address that clients dial")
        hosts = certificate_hosts(
            load_certificates(paths.certificate, "give its hosts by host=")[0]
        )
    names = list(dict.fromkeys(parse_host(host) for host in [*hosts, *LOCAL_HOSTS]))
    now = datetime.now(UTC)
    files: list[NewFile] = []
    if existed:
        authority = load_authority(paths.ca, ca_key_path)
    else:
        authority = new_authority(now)
        files += [
            NewFile(ca_key_path, private_pem(authority.key), private=True),
            NewFile(paths.ca, certificate_pem(authority.certificate)),
        ]
    # The key stays: one file is replaced, and a server never sees two that do not match.
    if paths.key.exists():
        key = load_private_key(paths.key, "delete it, and a new one is made")
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        files.append(NewFile(paths.key, private_pem(key), private=True))
    certificate = new_server_certificate(authority, key, names, now, days)
    files.append(NewFile(paths.certificate, certificate_pem(certificate), replace=True))
    return ServerPlan(files, authority, existed, certificate)
