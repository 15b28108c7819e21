"""The subcommands of the command for keys: each does its work and prints the next steps."""

import hashlib
import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from cryptography import x509
from pydantic import BeforeValidator, Field, model_validator

from orchestra_flwr.config import ConfigError, Section
from orchestra_flwr.deployment.keys.certificates import (
    certificate_hosts,
    certificate_pem,
    load_certificates,
    parse_host,
)
from orchestra_flwr.deployment.keys.client_keys import (
    NAME_PATTERN,
    NAME_RULE,
    PublicKey,
    check_name,
    load_public_key,
    new_client,
)
from orchestra_flwr.deployment.keys.client_registry import (
    path_of,
    plan_registration,
    registered,
    revoke,
)
from orchestra_flwr.deployment.keys.key_files import (
    COMMAND,
    MAX_BYTES,
    NewFile,
    quoted,
    read,
    write_all,
)
from orchestra_flwr.deployment.keys.peers import peers_file
from orchestra_flwr.deployment.keys.server_address import host_of
from orchestra_flwr.deployment.keys.server_keys import (
    DEFAULT_DAYS,
    MAX_DAYS,
    ServerPlan,
    plan_server,
)
from orchestra_flwr.deployment.keys.site_folder import site_files
from orchestra_flwr.files import at_home


def _divided(value: Any) -> Any:
    return tuple(dict.fromkeys(value.split(","))) if isinstance(value, str) else value


Several = Annotated[tuple[str, ...], BeforeValidator(_divided)]


class Options(Section):
    """What every subcommand may be given; a text is taken literally."""

    folder: Annotated[Path, BeforeValidator(at_home)] = Path("security")


class ServerOptions(Options):
    """Options of `server`."""

    host: Several = ()
    client: Several = ()
    days: int = Field(DEFAULT_DAYS, ge=1, le=MAX_DAYS)


class ClientOptions(Options):
    """Options of `client`."""

    name: str | None = None


class RegisterOptions(ClientOptions):
    """Options of `register`."""

    key: str


class RevokeOptions(Options):
    """Options of `revoke`."""

    name: str


class SiteOptions(Options):
    """Options of `site`."""

    server: str
    name: str | None = None
    images: str = ""
    sites: str | None = None
    wheel: Annotated[Path | None, BeforeValidator(at_home)] = None
    zip: bool = False

    @model_validator(mode="after")
    def _names_a_server_and_sites(self) -> "SiteOptions":
        host_of(self.server)
        if (self.name is None) == (self.sites is None):
            raise ValueError("name, sites: one of them must be given")
        return self


def make_server(options: ServerOptions) -> None:
    """Makes or renews the server's files; makes and registers bundles for clients.

    This and the other subcommands have written nothing when they raise an error.

    Raises:
        ConfigError: bad input.
        OSError: the disk refused.
    """
    folder = options.folder
    plan = plan_server(folder, options.host, options.days)
    ca = certificate_pem(plan.authority.certificate)
    bundles: list[NewFile] = []
    registrations: list[NewFile] = []
    for name in options.client:
        bundle = folder / "bundles" / check_name(name)
        if bundle.exists():
            raise ConfigError(f"{bundle} exists already: choose another name")
        public, pair = new_client(bundle, name)
        bundles += [NewFile(bundle / "ca.crt", ca), *pair]
        registrations += plan_registration(folder, public, name)
    # A running server sees a new client when its bundle is there, and the certificate is replaced
    # last: the one step that cannot be taken back.
    *made, certificate = plan.files
    write_all([*made, *bundles, *registrations, certificate])
    _print_server(folder, plan, options.client)


def make_client(options: ClientOptions) -> None:
    """Makes a client's key pair."""
    folder = options.folder
    public, files = new_client(folder, options.name)
    write_all(files)
    line = public.line.decode().strip()
    print(f"made {folder}/client.key (private: it stays here) and client.pub for {public.comment}:")
    print(f"\n{line}\n\nnext:")
    print(f"- at the server: echo '{line}' | {COMMAND} register key=-")
    if not (folder / "ca.crt").exists():
        print(f"- copy ca.crt from the server's folder to {folder}/ca.crt")


def make_site(options: SiteOptions) -> None:
    """Makes a folder or a zip for each site, from which its client starts."""
    folder = _existing(options.folder)
    hosts = certificate_hosts(load_certificates(folder / "server.crt", "make it with `server`")[0])
    if (host := str(parse_host(host_of(options.server)).value)) not in hosts:
        raise ConfigError(
            f"server={options.server}: {host} is not in {folder}/server.crt, which is for "
            f"{', '.join(hosts)}: clients would refuse it; give {COMMAND} server host= all of them"
        )
    ca = read(folder / "ca.crt", "make it with `server`")
    sites = {str(options.name): options.images}
    if options.sites is not None:
        from orchestra_flwr.data.image_files.file_table import read_file_table  # imports torch

        sites = read_file_table("sites", options.sites, ("name", "images"))
        if not sites:
            raise ConfigError(f"sites={options.sites}: names no site")
    place, files = folder / "sites", []
    for name, images in sites.items():
        files += site_files(
            place, name, ca=ca, server=options.server, images=images, wheel=options.wheel,
            zipped=options.zip,
        )  # fmt: skip
    write_all(files)
    made = sorted({str(file.path.relative_to(place).parts[0]) for file in files})
    print(f"made {place} with {', '.join(made)}; nothing in it is secret\n\nnext:")
    if options.zip:
        print("- tell each site the SHA-256 of its zip by another way, and let it compare:")
        for file in files:
            print(f"    {hashlib.sha256(file.data).hexdigest()}  {file.path.name}")
    print(
        "- bring each to its site, where `sh start.sh` makes the key and prints its public half\n"
        "- register that half here, after a call to the site:\n"
        f"    {COMMAND} register key=client.pub folder={quoted(folder)}"
    )


def register_client(options: RegisterOptions) -> None:
    """Puts a public key on the server's list."""
    folder = _existing(options.folder)
    if options.key == "-":
        data = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_BYTES)  # it may be closed
        key = PublicKey.parse(data, "standard input")
    else:
        key = load_public_key(at_home(options.key))
    if options.name is None and not re.fullmatch(NAME_PATTERN, key.comment):
        raise ConfigError(f"the key ends in {key.comment!r}, no name ({NAME_RULE}): give name=")
    name = key.comment if options.name is None else options.name
    files = plan_registration(folder, key, name)
    if name != key.comment and re.fullmatch(NAME_PATTERN, key.comment):
        raise ConfigError(  # the server would refuse the client, which keeps to its key's name
            f"name={name}: this key is named {key.comment}, and so is its client: leave name= out, "
            f"or make another key with `{COMMAND} client name=...`"
        )
    write_all(files)
    done = "registered" if files else "already registered:"
    print(f"{done} {name} ({key.fingerprint})")


def revoke_client(options: RevokeOptions) -> None:
    """Takes a client off the server's list."""
    revoke(_existing(options.folder), options.name)
    print(f"revoked {options.name}")


def show(options: Options) -> None:
    """Prints who is registered."""
    clients = registered(_existing(options.folder))
    if not clients:
        print(f"no client is registered in {options.folder}")
        return
    rows = [("name", "fingerprint", "registered", "age")]
    now = datetime.now()
    for name, key in clients.items():
        when = datetime.fromtimestamp(path_of(options.folder, name).stat().st_mtime)
        age = f"{max((now - when).days, 0)} days"
        rows.append((name, key.fingerprint, f"{when:%Y-%m-%d %H:%M}", age))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def make_peers(options: Options) -> None:
    """Writes the keys of all that are registered into one file, for every client."""
    folder = _existing(options.folder)
    clients = registered(folder)
    if not clients:
        raise ConfigError(f"no client is registered in {folder}: register them first")
    file = peers_file(folder, clients)
    write_all([file])
    print(f"made {file.path} with the keys of {len(clients)} clients\n\nnext:")
    print(
        "- copy it to the security folder of every client, in a way that the server does not "
        "control, and start them again; when a client is registered or revoked, do so once more"
    )


SUBCOMMANDS: dict[str, tuple[type[Options], Callable[[Any], None]]] = {
    "server": (ServerOptions, make_server),
    "client": (ClientOptions, make_client),
    "site": (SiteOptions, make_site),
    "register": (RegisterOptions, register_client),
    "revoke": (RevokeOptions, revoke_client),
    "list": (Options, show),
    "peers": (Options, make_peers),
}


def _print_server(folder: Path, plan: ServerPlan, names: Sequence[str]) -> None:
    authority, certificate = plan.authority.certificate, plan.certificate
    if plan.authority_existed:
        print(f"kept {folder}/ca.crt: clients trust it already (until {_end(authority)})")
    else:
        print(f"made {folder}/ca.crt and ca.key: what clients will trust (until {_end(authority)})")
    for_whom = ", ".join(certificate_hosts(certificate))
    print(f"made {folder}/server.crt for {for_whom} (until {_end(certificate)})")
    for name in names:
        print(f"made {folder}/bundles/{name}: the files of client {name}, which is registered")
    print("\nnext:")
    if plan.authority_existed:
        print("- restart the server, which reads its certificate when it starts")
    else:
        print(f"- keep {folder}/ca.key secret and safe: whoever has it can pose as the server")
    if names:
        print(
            f"- copy each folder in {folder}/bundles to its client's machine, as its security "
            "folder, over a safe way; then delete client.key here"
        )
    whose = "another" if names else "a"
    print(
        f"- on {whose} client's machine: copy {folder}/ca.crt there, make its key with\n"
        f"    {COMMAND} client\n"
        "  bring its client.pub here and register it with\n"
        f"    {COMMAND} register key=client.pub folder={quoted(folder)}"
    )


def _existing(folder: Path) -> Path:
    # A mistyped folder, or a client's own, must not become a second list that no server reads.
    if not folder.is_dir():
        raise ConfigError(f"folder={folder}: no such folder (`server` makes it)")
    if (folder / "client.key").exists() and not (folder / "server.crt").exists():
        raise ConfigError(f"folder={folder}: is a client's, the list is in the server's folder")
    return folder


def _end(certificate: x509.Certificate) -> str:
    return f"{certificate.not_valid_after_utc:%Y-%m-%d}"
