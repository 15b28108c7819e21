"""Files that could not be read, for warnings."""

from collections.abc import Iterable

from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import listed


def first_ones(reasons: Iterable[tuple[str, str]]) -> str:
    """The first few of (path, reason), and how many more there are."""
    lines = [f"{printable(path)}: {reason}" for path, reason in reasons]
    return listed(lines, separator="; ")
