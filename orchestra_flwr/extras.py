"""Optional libraries, asked for before anything is computed."""

from __future__ import annotations

from importlib.util import find_spec

from orchestra_flwr.config import ConfigError


def require(key: str, extra: str, *libraries: str) -> None:
    """Refuses a choice that needs libraries which are not installed.

    Args:
        key: the choice, as it is written on the command line.
        extra: of this package, with these libraries.
        libraries: names under which they are imported.

    Raises:
        ConfigError: names the first one that is missing, and what to install.
    """
    for library in libraries:
        spec = find_spec(library)
        if spec is None or spec.origin is None:  # None: a folder of this name that is no library
            raise ConfigError(
                f"{key}: {library} is not installed; pip install 'orchestra-flwr[{extra}]'"
            )


# What all commands but the client's need: the extra `server`.
SERVER = ("matplotlib", "sklearn", "scipy", "dp_accounting")


def require_accounting(key: str) -> None:
    """Refuses what dp-accounting has to account for, where it is not installed.

    Raises:
        ConfigError: names the key and what to install.
    """
    require(key, "privacy", "dp_accounting")


def require_server(program: str) -> None:
    """Refuses a program in an environment that was made for a client.

    Raises:
        ConfigError: names the library that is missing, and what to install.
    """
    require(program, "server", *SERVER)
