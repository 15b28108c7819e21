"""Files that could not be read, for warnings."""

from collections.abc import Iterable

from orchestra_flwr.console.printable import printable

NAMED = 5  # files or folders that a warning names


def first_ones(reasons: Iterable[tuple[str, str]]) -> str:
    """The first few of (path, reason), and how many more there are."""
    lines = [f"{printable(path)}: {reason}" for path, reason in reasons]
    more = len(lines) - NAMED
    return "; ".join(lines[:NAMED]) + (f"; and {more} more" if more > 0 else "")
