"""Certificates and keys of a federation on separate machines: the command and its functions.

``python -m orchestra_flwr.deployment.keys --help``. A server and its clients read the files that
the command made by :func:`server_files`, :func:`client_files` and :func:`registered`.
"""

from orchestra_flwr.deployment.keys.client_keys import (
    NAME_PATTERN,
    ClientFiles,
    client_files,
    key_fingerprint,
)
from orchestra_flwr.deployment.keys.client_registry import registered
from orchestra_flwr.deployment.keys.command_line import main
from orchestra_flwr.deployment.keys.key_files import COMMAND
from orchestra_flwr.deployment.keys.server_keys import ServerFiles, server_files

__all__ = [
    "COMMAND",
    "NAME_PATTERN",
    "ClientFiles",
    "ServerFiles",
    "client_files",
    "key_fingerprint",
    "main",
    "registered",
    "server_files",
]
