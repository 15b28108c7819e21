"""Which column of a table of images holds the labels, where nobody has named it."""

from collections.abc import Collection, Sequence
from typing import Any

LABEL = "label"  # the name of a column
ALSO_LABELS = ("class", "target")


def label_columns(columns: Sequence[Any], declared: Collection[Any]) -> list[Any]:
    """The columns that may hold the label: one where it is clear, none, or several.

    The one called "label"; else those that are declared as class labels or called "class" or
    "target"; else those with "label" in their names.

    Args:
        columns: their names, without those of images and owners.
        declared: the ones that are declared as class labels.
    """
    if LABEL in columns:
        return [LABEL]
    exact = [column for column in columns if column in declared or column in ALSO_LABELS]
    return exact or [column for column in columns if LABEL in str(column)]
