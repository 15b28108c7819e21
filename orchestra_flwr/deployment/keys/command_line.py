"""The command ``python -m orchestra_flwr.deployment.keys``: its arguments and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TypeAlias

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.deployment.keys import subcommands
from orchestra_flwr.deployment.keys.client_keys import NAME_RULE
from orchestra_flwr.deployment.keys.key_files import COMMAND
from orchestra_flwr.files import at_home

_Choices: TypeAlias = "argparse._SubParsersAction[_Parser]"
DESCRIPTION = """\
Makes and manages the certificates and keys of a federation on separate machines.

  at the server     server    --host fl.example.org
  at each client    client                       (its private key never leaves it)
  at the server     register  client.pub
"""
EPILOG = "Exit code 0: done; 2: an error, and nothing was written; 130: stopped, nothing written."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
        options.run(options)
    except ConfigError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def _fail(reason: str) -> int:
    print(f"error: {printable(' '.join(reason.split()))}", file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=COMMAND,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices = parser.add_subparsers(required=True, metavar="COMMAND", dest="subcommand")
    for add in (_add_server, _add_client, _add_register, _add_revoke, _add_list):
        add(choices).add_argument(
            "--folder",
            type=at_home,  # a shell leaves --folder=~/keys as it is
            default=Path("security"),
            help="folder of certificates and keys (default: %(default)s)",
        )
    return parser


def _add_server(choices: _Choices) -> argparse.ArgumentParser:
    server = choices.add_parser(
        "server",
        help="make the certificate authority and the server's certificate, or renew it",
        description="Makes the certificate authority (ca.crt, ca.key) and the server's "
        "certificate and key (server.crt, server.key). An authority that is there is kept, and "
        "so is the server's key: then the certificate alone is made anew. For a new server key, "
        "delete server.key first.",
    )
    server.add_argument(
        "--host",
        action="append",
        default=[],
        help="host name or IP address that clients dial; may be given several times; localhost "
        "is always added; without it the hosts of the present certificate are kept",
    )
    server.add_argument(
        "--client",
        action="append",
        default=[],
        metavar="NAME",
        help="also make bundles/NAME with all that this client needs, and register it; may be "
        "given several times (safer: `client` on its own machine)",
    )
    server.add_argument(
        "--days",
        type=int,
        default=825,
        help="how long the server's certificate is valid (default: %(default)s)",
    )
    server.set_defaults(run=subcommands.make_server)
    return server


def _add_client(choices: _Choices) -> argparse.ArgumentParser:
    client = choices.add_parser(
        "client",
        help="make a client's key pair on its own machine",
        description="Makes client.key and client.pub. The private key never leaves this machine; "
        "the public one is registered at the server.",
    )
    client.add_argument("--name", help=f"{NAME_RULE} (default: client- and 6 digits of the key)")
    client.set_defaults(run=subcommands.make_client)
    return client


def _add_register(choices: _Choices) -> argparse.ArgumentParser:
    register = choices.add_parser(
        "register",
        help="let a client take part",
        description="Puts a client's public key on the list, as clients/NAME.pub. A running "
        "server takes it up by itself.",
    )
    register.add_argument(
        "public_key", metavar="PUBLIC_KEY_FILE", help="client.pub, or - for stdin"
    )
    register.add_argument("--name", help=f"{NAME_RULE} (default: the comment of the key)")
    register.set_defaults(run=subcommands.register_client)
    return register


def _add_revoke(choices: _Choices) -> argparse.ArgumentParser:
    revoke = choices.add_parser(
        "revoke",
        help="take a client off the list",
        description="Removes clients/NAME.pub. A running server takes it up by itself.",
    )
    revoke.add_argument("name", metavar="NAME")
    revoke.set_defaults(run=subcommands.revoke_client)
    return revoke


def _add_list(choices: _Choices) -> argparse.ArgumentParser:
    listing = choices.add_parser(
        "list",
        help="show who is registered",
        description="Prints name, fingerprint and time of registration of every client.",
    )
    listing.set_defaults(run=subcommands.show)
    return listing
