"""Optional libraries, checked before anything is computed."""

import logging
from importlib.util import find_spec

from orchestra_flwr.config import ConfigError


def require(key: str, extra: str, *libraries: str) -> None:
    """Refuses a choice (`key`, as on the command line) whose libraries are not installed.

    Raises:
        ConfigError: names the first missing one, and the extra that installs it.
    """
    for library in libraries:
        spec = find_spec(library)
        if spec is None or spec.origin is None:  # no origin: a mere folder of this name
            raise ConfigError(
                f"{key}: {library} is not installed; pip install 'orchestra-flwr[{extra}]'"
            )


# All commands but the client's need these: the extra `server`.
SERVER = ("matplotlib", "sklearn", "scipy", "dp_accounting")


def require_server(program: str) -> None:
    """As :func:`require`, for a program that needs more than the client's libraries.

    Raises:
        ConfigError: names the library that is missing, and what to install.
    """
    require(program, "server", *SERVER)


def log_the_hub_once() -> None:
    """Takes away the handler by which huggingface_hub also prints what it passes on to be logged.

    To be called once it is imported; handlers of another kind, a user's own, stay.
    """
    logger = logging.getLogger("huggingface_hub")
    logger.handlers = [h for h in logger.handlers if type(h) is not logging.StreamHandler]
