"""Addresses: to listen on, whether connections to them use TLS, and where to watch a run."""

import errno
import ipaddress
import socket
from pathlib import Path

from pydantic import Field

from orchestra_flwr.config import ConfigError, Section


class WatchConfig(Section):
    """The address of `/status`, `/metrics` and the page, which need no login."""

    host: str = Field("127.0.0.1", min_length=1)
    port: int | None = Field(None, ge=0, le=65535)  # None: off; 0: any free one

    def unread(self) -> dict[str, str]:
        """The host without a port; as of :meth:`Composed.unread`."""
        return {} if self.port is not None else {"watch.host": "without watch.port"}


DEFAULT_SECURITY = "security"  # the folder of keys where none is named


def uses_tls(host: str, insecure: bool, named: bool, *files: Path) -> bool:
    """Whether a connection to `host` uses TLS.

    To this machine itself it does only where keys were made, where one of `files` exists, or where
    their folder was `named`: a name with a slip of the pen must not turn TLS off.
    """
    wanted = named or not is_loopback(host) or any(file.is_file() for file in files)
    return wanted and not insecure


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int, section: str = "") -> socket.socket:
    """A socket that listens on an address; port 0: any free one.

    `section` comes before the keys `host` and `port` in errors, such as "watch.".

    Raises:
        ConfigError: not an address of this machine, or the port is taken.
    """
    keys, six = f"{section}host={host} {section}port={port}", ":" in host
    try:
        listening = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if six else socket.AF_INET,
            backlog=1024,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
    except TypeError as error:  # a name that cannot even be looked up
        raise ConfigError(f"{keys}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{keys}: {_why_not(error)}") from None
    # Connections inherit it. asyncio sets it only on sockets that name their protocol, and
    # without it every response waits 40 ms for the client's acknowledgement of its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _why_not(error: OSError) -> str:
    """Why an address cannot be listened on, and what to do."""
    cures = {
        errno.EADDRINUSE: "another program listens there: stop it, or choose another port",
        errno.EADDRNOTAVAIL: "must be an address of this machine; 0.0.0.0 is all of them",
        errno.EACCES: "may not be listened on by this user: choose a port above 1023",
    }
    reason = str(error.strerror or error).partition(" (while")[0]  # which Python adds
    return cures.get(error.errno or 0, f"{reason}: give an address of this machine")
