"""What an address says about the connection to it."""

import ipaddress
from pathlib import Path


def uses_tls(host: str, insecure: bool, file: Path) -> bool:
    """Whether a connection to `host` uses TLS.

    Args:
        host: the server's host name or address.
        insecure: the user has allowed plain text.
        file: a file that only exists where keys were made; it decides on this machine itself.
    """
    return not insecure and (not is_loopback(host) or file.is_file())


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
