"""What an address says about the connection to it."""

import ipaddress
from pathlib import Path


def uses_tls(host: str, insecure: bool, file: Path) -> bool:
    """Whether a connection to `host` uses TLS.

    On this machine itself it does where keys were made: where there is `file`.
    """
    return not insecure and (not is_loopback(host) or file.is_file())


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
