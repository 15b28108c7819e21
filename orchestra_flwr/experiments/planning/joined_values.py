"""Values that hold commas, on a command line that separates values by commas."""

from collections.abc import Container, Sequence


def joined_values(parts: Sequence[str], known: Container[str]) -> list[str]:
    """Puts values together again that were cut at their commas.

    From left to right the longest known value is taken; a part that belongs to none stays as it is.

    Args:
        parts: between the commas.
        known: the values that there are.

    Examples:
        >>> joined_values(["base", "GroupNorm", " clip 3"], {"base", "GroupNorm, clip 3"})
        ['base', 'GroupNorm, clip 3']
    """
    joined: list[str] = []
    first = 0
    while first < len(parts):
        ends = range(len(parts), first, -1)
        values = {end: ",".join(parts[first:end]).strip() for end in ends}
        end = next((end for end in ends if values[end] in known), first + 1)
        joined.append(values[end])
        first = end
    return joined
