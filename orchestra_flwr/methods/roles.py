"""Roles: who owns a tensor, and so whether it may leave the client."""

from collections.abc import Mapping
from enum import Enum


class Role(Enum):
    """Who owns a tensor."""

    SHARED = "shared"  # trained by the clients, averaged by the server, sent both ways
    SERVER = "server"  # made by the server, sent down only
    LOCAL = "local"  # the client's own: kept from round to round, never leaves it
    FROZEN = "frozen"  # stays as it was when the run began: nobody trains it, no client sends it
    TRANSIENT = "transient"  # never leaves the client, gone after a round


def role_of(name: str, roles: Mapping[str, Role]) -> Role:
    """The role of a tensor by the longest entry that its full name begins with.

    Args:
        name: such as "backbone.stem.weight".
        roles: by the name of a module, "backbone" or "backbone.stem", or of a tensor.

    Raises:
        ValueError: no entry fits. There is no default: a role is a privacy wall.
    """
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        role = roles.get(".".join(parts[:length]))
        if role is not None:
            return role
    raise ValueError(
        f"the tensor {name} has no role: return one from role(name), or in a family add {parts[0]} "
        "to the class attribute roles; Role.SHARED travels, LOCAL and TRANSIENT stay on the client"
    )
