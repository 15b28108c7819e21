"""TLS on both sides of the gate, and what a failed handshake means."""

import ssl

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys.server_keys import ServerFiles

# As Flower's own limit: a SuperNode gives up after 30 s without a byte.
HANDSHAKE_SECONDS = 30.0
_UNTRUSTED = "does not trust our certificate: give that client our CA's file"
REASONS = {
    "HTTP_REQUEST": "spoke plain text to the TLS port: start that client without insecure=true",
    "TLSV1_ALERT_UNKNOWN_CA": _UNTRUSTED,
    "TLSV1_ALERT_DECRYPT_ERROR": _UNTRUSTED,  # its CA has the name of ours, and another key
    "SSLV3_ALERT_BAD_CERTIFICATE": "refused our certificate: it does not hold the name or address "
    "that the client connects to, or the client's clock is before its first day",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "refused our certificate: it has expired, or the client's "
    "clock is ahead",
    "UNSUPPORTED_PROTOCOL": "speaks only versions of TLS that are no longer safe",
    "WRONG_VERSION_NUMBER": "sent something that is no TLS",
    "UNEXPECTED_EOF_WHILE_READING": "closed the connection in the middle of the TLS handshake",
}


def server_context(tls: ServerFiles | None) -> ssl.SSLContext | None:
    """What clients connect to; raises a ConfigError where the certificate cannot be used."""
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:
        raise ConfigError(
            f"{tls.certificate} with {tls.key} is no usable certificate: {error}"
        ) from None
    return context


def client_context(tls: ServerFiles | None) -> ssl.SSLContext | None:
    """What the gate checks the SuperLink's certificate with; raises a ConfigError likewise."""
    if tls is None:
        return None
    try:
        return ssl.create_default_context(cafile=tls.ca)
    except OSError as error:
        raise ConfigError(f"{tls.ca} is no usable CA certificate: {error}") from None


def handshake_failure(error: OSError) -> str:
    """Why a client's handshake failed, in words that say what to do."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return REASONS.get(error.reason, f"failed in the TLS handshake ({error.reason})")
    if isinstance(error, ConnectionAbortedError):
        return f"did not end the TLS handshake within {HANDSHAKE_SECONDS:g} s"
    return "closed the connection before a TLS handshake (a scan or a health check?)"
