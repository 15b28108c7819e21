"""Addresses: what one says about the connection to it, and where a process is watched."""

import ipaddress
from pathlib import Path

from pydantic import Field

from orchestra_flwr.config import Section


class WatchConfig(Section):
    """The address of `/status`, `/metrics` and the page; nobody has to log in there."""

    host: str = Field("127.0.0.1", min_length=1)
    port: int | None = Field(None, ge=0, le=65535)  # None: off; 0: any free one

    def unread(self) -> dict[str, str]:
        """The host without a port; as of :meth:`Composed.unread`."""
        return {} if self.port is not None else {"watch.host": "without watch.port"}


def uses_tls(host: str, insecure: bool, *files: Path) -> bool:
    """Whether a connection to `host` uses TLS.

    On this machine itself it does where keys were made: where there is one of `files`.
    """
    return not insecure and (not is_loopback(host) or any(file.is_file() for file in files))


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
