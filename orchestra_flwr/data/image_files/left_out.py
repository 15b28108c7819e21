"""What could not be read, in the words of a warning."""

from __future__ import annotations

from collections.abc import Iterable

from orchestra_flwr.console.printable import printable

NAMED = 5  # files or folders that a warning names


def first_ones(reasons: Iterable[tuple[str, str]]) -> str:
    """The first few of (path, reason), and how many more there are."""
    all_of_them = [f"{printable(path)}: {reason}" for path, reason in reasons]
    more = len(all_of_them) - NAMED
    return "; ".join(all_of_them[:NAMED]) + (f"; and {more} more" if more > 0 else "")
