"""Numbers of records, and numbers as text."""

from collections.abc import Mapping, Sequence
from typing import Any

ACCURACIES = {"knn": "kNN", "linear": "linear probe", "map": "mAP"}  # of a summary, by key
SCORE = "score (align + 0.2 unif)"  # evaluation.best_by=score
MORE_IS_BETTER = "more is better in every row"  # below tables of scores without labels


def lookup(record: Mapping[str, Any], *keys: str) -> float | None:
    """The number at a path of keys, e.g. "scores", "target", "knn"; None where there is none."""
    value: Any = record
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


def flat(values: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """The values of nested sections by their full names, such as `loss.total`."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            leaves |= {f"{key}{separator}{k}": v for k, v in flat(value, separator).items()}
        else:
            leaves[str(key)] = value
    return leaves


def listed(items: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """Items as text: all, or the first of very many and how many more there are."""
    more = [f"and {len(items) - most} more"] if len(items) > most else []
    return separator.join([*items[:most], *more])


def counted(count: int, what: str) -> str:
    """A number of things as text: "1 round", "2 rounds"."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """Seconds as text: "4.2 s", "42 s", "7 min", "2 h 05 min", "3 days"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes >= 60 * 48:
        return f"{round(minutes / 60 / 24)} days"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: float) -> str:
    """Bytes as text, in decimal units: "123 B", "4.5 MB", "12.3 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def percent(fraction: float) -> str:
    """A fraction as text: "45.1 %"."""
    return f"{100 * fraction:.1f} %"
