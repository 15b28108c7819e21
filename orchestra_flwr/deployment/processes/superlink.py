"""Flower's SuperLink as a child process of the server."""

import time
from pathlib import Path

from orchestra_flwr.deployment.keys.server_keys import ServerFiles
from orchestra_flwr.deployment.processes.child import Child, accepts
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.flower.socket_server import socket_server_command

STUCK_SECONDS = 120.0  # in which a start makes no progress at all


def superlink_command(socket: Path, keys: ServerFiles | None) -> list[str]:
    """The program and its arguments: it opens no port, and starts no program itself.

    The keys are for TLS and for the authentication of clients; None: plain text.
    """
    command = socket_server_command(socket, "flower-superlink")
    command += ["--isolation", "process", "--disable-runtime-dependency-installation"]
    if keys is None:
        return [*command, "--insecure"]
    return [
        *command,
        "--enable-supernode-auth",
        f"--ssl-ca-certfile={keys.ca}",
        f"--ssl-certfile={keys.certificate}",
        f"--ssl-keyfile={keys.key}",
    ]


def wait_until_up(socket: Path, link: Child) -> None:
    """Returns when the SuperLink listens, which on a busy machine takes minutes.

    Raises:
        FederationError: it has ended, or makes no progress any more.
    """
    progress, since = link.progress, time.monotonic()
    while not accepts(socket):
        if link.returncode is not None:
            last = next((line for line in reversed(link.tail()) if line.strip()), "no output")
            raise FederationError(f"Flower's SuperLink did not start: {last} (end of {link.log})")
        if (now := link.progress) != progress:
            progress, since = now, time.monotonic()
        elif time.monotonic() - since > STUCK_SECONDS:
            raise FederationError(
                f"Flower's SuperLink did not start: for {STUCK_SECONDS:.0f} s it has done nothing "
                f"(end of {link.log})"
            )
        time.sleep(0.1)


def check_alive(link: Child) -> None:
    """Raises a FederationError where the SuperLink has ended."""
    if link.returncode is not None:
        raise FederationError(f"Flower's SuperLink ended (see {link.log})")
