"""The address of a server, as clients are given it."""

import re


def host_of(server: str) -> str:
    """The host in HOST:PORT; an IPv6 address comes without its brackets.

    Raises:
        ValueError: this is no such address; says what is wrong with it.
    """
    if re.search(r"[\s/@,=?#]", server):
        raise ValueError(f"server={server}: must be HOST:PORT alone, without http(s)://")
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"server={server or 'null'}: must be HOST:PORT, the server's address")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"server={server}: must be [{host}]:{port}, an IPv6 address")
    try:
        host.encode("idna")  # as it is looked up
    except UnicodeError:
        raise ValueError(f"server={server}: {host} can be no host's name") from None
    return host.strip("[]")
