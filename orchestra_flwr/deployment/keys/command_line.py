"""The command ``orchestra-keys``: its words and exit codes."""

import sys
from collections.abc import Sequence

from orchestra_flwr.commands.endings import run_command, stop_on_sigterm
from orchestra_flwr.config import ConfigError, parse
from orchestra_flwr.console.output_streams import ignore_closed_streams
from orchestra_flwr.deployment.keys.client_keys import NAME_RULE
from orchestra_flwr.deployment.keys.key_files import COMMAND
from orchestra_flwr.deployment.keys.server_keys import DEFAULT_DAYS
from orchestra_flwr.deployment.keys.subcommands import SUBCOMMANDS

USAGE = f"""\
usage: {COMMAND} COMMAND [key=value ...]

Makes and manages the certificates and keys of a federation on separate machines.

  at the server     server host=fl.example.org
  at each client    client                       (its private key never leaves it)
  at the server     register key=client.pub

server    makes the certificate authority (ca.crt, ca.key) and the server's certificate and key
          (server.crt, server.key). An existing authority is kept, and so is the server's key: then
          only the certificate is made anew. For a new server key, delete server.key first.
  host=    host names or IP addresses that clients dial, such as fl.example.org,10.0.0.5; localhost
           is always added; without it the hosts of the present certificate are kept
  client=  names of clients, such as a,b: also makes bundles/NAME with all that each needs, and
           registers it (safer: `client` on its own machine)
  days=    how long the server's certificate is valid ({DEFAULT_DAYS})
client    makes client.key, which never leaves this machine, and client.pub, to be registered
  name=    {NAME_RULE}
           (client- and 6 digits of the key)
site      makes sites/NAME: all that a site needs, no secret; there `sh start.sh` makes the client's
          key, prints what to register, and starts the client
  name=    {NAME_RULE}
  server=  the address that clients dial, such as fl.example.org:8443
  images=  where the site has its images (it says so: sh start.sh data.root=...)
  sites=   in place of name= and images=: a CSV with the columns name and images
  wheel=   of this package, for sites that do not have it; without a network they cannot install it
  zip=     true: sites/NAME.zip instead of a folder
register  lets a client take part: puts its public key on the list, as clients/NAME.pub
  key=     the file client.pub, or - for standard input
  name=    as above (the comment of the key)
revoke    takes a client off the list: removes clients/NAME.pub
  name=    of the client
list      prints name, fingerprint, time of registration and age of every client's key
peers     makes peers.pem, the keys of all that are registered, for every client's folder: with it
          secure aggregation holds against a server that does not follow the protocol

  folder=  of certificates and keys, of every command (security)

A running server notices by itself who is registered and who is revoked.

Exit code 0: done, 2: an error, and nothing was written, 130 or 143: stopped, nothing was written.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    ignore_closed_streams()
    stop_on_sigterm()
    words = list(sys.argv[1:] if arguments is None else arguments)

    def work() -> None:
        if {"--help", "-h"} & {*words}:
            print(USAGE, end="")
            return
        if not words or words[0] not in SUBCOMMANDS:
            wrong = f"{words[0]}: must be" if words else "a command must be given:"
            raise ConfigError(f"{wrong} one of {', '.join(SUBCOMMANDS)} (see --help)")
        name, *rest = words
        options, run = SUBCOMMANDS[name]
        try:
            run(parse(options, _values(rest)))
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise ConfigError(reason) from None

    return run_command(work, "stopped; nothing was written")


def _values(words: Sequence[str]) -> dict[str, str]:
    """The values by their keys.

    Raises:
        ConfigError: a word that is no key=value, or a key that is given twice.
    """
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word}: must be written as key=value (see --help)")
        if key in values:
            raise ConfigError(f"{key}: is given twice; several hosts or clients are written a,b")
        values[key] = value
    return values
