"""X.509 certificates of a federation: made, read and checked."""

import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys.key_files import read

AUTHORITY_LIFE = timedelta(days=3652)  # ten years
BACKDATED = timedelta(days=1)  # for clocks that are behind
WARN_BEFORE = timedelta(days=30)
# Underscores are no host names to DNS, but container networks have them.
HOST_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey  # RSA: for files not made by us


@dataclass(frozen=True)
class Authority:
    """A certificate authority: its certificate and the key that signs."""

    certificate: x509.Certificate
    key: PrivateKey


@dataclass(frozen=True)
class Dated:
    """A certificate and its file, with what is to be done when it ends."""

    path: Path
    certificate: x509.Certificate
    remedy: str

    def check(self) -> None:
        """Raises a :class:`ConfigError` unless it is valid now."""
        now = datetime.now(UTC)
        start = self.certificate.not_valid_before_utc
        if now < start:
            raise ConfigError(
                f"{self.path} is valid from {start:%Y-%m-%d} on, and this machine's clock says "
                f"{now:%Y-%m-%d}: set the clock"
            )
        if now > self._end:
            raise ConfigError(f"{self.path} expired on {self._end:%Y-%m-%d}: {self.remedy}")

    def warning(self) -> str | None:
        """A line from 30 days before its end; None: it is valid for longer."""
        if datetime.now(UTC) < self._end - WARN_BEFORE:
            return None
        return f"{self.path} expires on {self._end:%Y-%m-%d}: {self.remedy}"

    @property
    def _end(self) -> datetime:
        return self.certificate.not_valid_after_utc


def load_authorities(path: Path, remedy: str) -> list[Dated]:
    """The valid authorities that ca.crt trusts: two while one replaces the other.

    Raises:
        ConfigError: missing or damaged, or all have expired or are not yet valid.
    """
    anew = "set up the server in a new folder and give its ca.crt to all clients"
    authorities = [
        Dated(path, certificate, anew) for certificate in load_certificates(path, remedy)
    ]
    valid: list[Dated] = []
    for authority in authorities:
        try:
            authority.check()
        except ConfigError:
            if authority is authorities[-1] and not valid:
                raise
        else:
            valid.append(authority)
    return valid


def new_authority(now: datetime) -> Authority:
    """A new certificate authority, valid for ten years."""
    key = ec.generate_private_key(ec.SECP384R1())
    # A name of its own: two federations' authorities must not be taken for each other.
    name = _name(f"orchestra_flwr CA {secrets.token_hex(4)}")
    certificate = (
        _builder(name, key, name, key, start=now - BACKDATED, end=now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, hashes.SHA384())
    )
    return Authority(certificate, key)


def new_server_certificate(
    authority: Authority,
    key: PrivateKey,
    names: Sequence[x509.GeneralName],
    now: datetime,
    days: int,
) -> x509.Certificate:
    """A server certificate for `names`; it never outlives its authority."""
    end = min(now + timedelta(days=days), authority.certificate.not_valid_after_utc)
    # No host stands in the subject: clients read the alternative names, and it is limited to 64.
    subject, issuer = _name("orchestra_flwr server"), authority.certificate.subject
    return (
        _builder(subject, key, issuer, authority.key, start=now - BACKDATED, end=end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority.key, hashes.SHA384())
    )


def parse_host(text: str) -> x509.GeneralName:
    """A host name or an IP address, as clients will dial it.

    Raises:
        ConfigError: neither of them: a URL, a port, a wildcard, an address to listen on.
    """
    expected = "must be a host name or an IP address, without scheme, port or wildcard"
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        pass
    else:
        if address.is_unspecified:
            raise ConfigError(f"host={text}: give the address that clients dial")
        if "%" in text:
            raise ConfigError(f"host={text}: give the address without its zone (%...)")
        return x509.IPAddress(address)
    labels = text.lower().split(".")
    # A last label of digits alone is a mistyped address: no top-level domain looks so.
    if (
        len(text) > 253
        or not all(HOST_LABEL.fullmatch(label) for label in labels)
        or labels[-1].isdigit()
    ):
        raise ConfigError(f"host={text!r}: {expected}")
    return x509.DNSName(text.lower())


def certificate_hosts(certificate: x509.Certificate) -> list[str]:
    """The host names and addresses that a certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(n.value) for n in names if isinstance(n, x509.DNSName | x509.IPAddress)]


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as its file holds it."""
    return certificate.public_bytes(Encoding.PEM)


def load_certificates(path: Path, remedy: str) -> list[x509.Certificate]:
    """The certificates of a file in PEM format; `remedy` says how to get a missing one.

    Raises:
        ConfigError: missing, unreadable or damaged.
    """
    data = read(path, remedy)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise ConfigError(f"{path} is no certificate in PEM format, or damaged: {remedy}") from None


def load_private_key(path: Path, remedy: str) -> PrivateKey:
    """An unencrypted private key in PEM format; `remedy` says how to get a missing one.

    Raises:
        ConfigError: missing, unreadable, encrypted or damaged.
    """
    data = read(path, remedy)
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, PrivateKey):
        raise ConfigError(
            f"{path} is no EC or RSA key in PEM format, or encrypted, or damaged: {remedy}"
        )
    return key


def load_authority(certificate_path: Path, key_path: Path) -> Authority:
    """The certificate authority of a key; its certificate may stand beside another one.

    Raises:
        ConfigError: a file is missing, damaged or out of date, or they do not match.
    """
    back = "put it back (clients trust this authority), or set up the server in a new folder"
    authorities = load_authorities(certificate_path, back)
    key = load_private_key(key_path, back)
    for authority in authorities:
        if key.public_key() == authority.certificate.public_key():
            return Authority(authority.certificate, key)
    raise ConfigError(f"{key_path} is not the key of {certificate_path}: {back}")


def is_signed_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    """Whether the authority `ca` signed a certificate."""
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def private_pem(key: PrivateKey) -> bytes:
    """A private key as its file holds it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _builder(
    subject: x509.Name,
    key: PrivateKey,
    issuer: x509.Name,
    issuer_key: PrivateKey,
    *,
    start: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    subject_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(subject_id, critical=False)
        .add_extension(issuer_id, critical=False)
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    every = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{usage: usage in allowed for usage in every})


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
