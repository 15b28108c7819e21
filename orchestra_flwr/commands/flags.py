"""The flags on a command line."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestra_flwr.config import ConfigError

SHORT = {"-h": "--help", "-m": "--multirun"}
COMMON = ("--help", "--version", "--cfg")
PROGRAM = (*COMMON, "--completion")  # of a program that is installed under its own name
SEVERAL = (*PROGRAM, "--multirun")


@dataclass(frozen=True)
class Flags:
    """A parsed command line."""

    overrides: tuple[str, ...]
    flags: frozenset[str]  # by their long names
    groups: tuple[str, ...]  # of --help, such as "method"

    def __contains__(self, flag: str) -> bool:
        return flag in self.flags


def read_flags(arguments: Sequence[str], allowed: Sequence[str] = COMMON) -> Flags:
    """Separates flags from overrides.

    Words without "=" are groups beside --help, and "job" beside --cfg, as in Hydra.

    Raises:
        ConfigError: a flag that is not allowed.
    """
    flags = [SHORT.get(word, word) for word in arguments if word.startswith("-")]
    for flag in flags:
        if flag not in allowed:
            raise ConfigError(f"{flag}: unknown flag; there are {', '.join(allowed)}")
    rest = [word for word in arguments if not word.startswith("-")]
    groups: list[str] = []
    if "--help" in flags:
        groups = [word for word in rest if "=" not in word]
        rest = [word for word in rest if "=" in word]
    elif "--cfg" in flags and "job" in rest:
        rest.remove("job")
    return Flags(tuple(rest), frozenset(flags), tuple(groups))
