"""Bounds what a client's reply may grow to when Flower puts its arrays together.

Checked against Flower 1.41: the registry of classes by which it puts messages together.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_children_ids_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry
from google.protobuf.message import DecodeError

# What Flower raises where a client's bytes are not what they should be.
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    DecodeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class UnreadableReplyError(ValueError):
    """A client sent something from which no message can be made."""


@contextmanager
def bounded_arrays(most: int | None) -> Iterator[None]:
    """Inside the block the arrays that Flower receives come to at most so many bytes together.

    An array arrives as chunks and a list of the order in which they are joined. A chunk may stand
    in that list as often as the sender likes, so a small reply could fill the server's memory.

    Args:
        most: bytes of all arrays; None: any number.

    Raises:
        UnreadableReplyError: they are more, or the reply cannot be read for another reason.
    """
    name = Array.__qualname__
    flowers = inflatable_class_registry[name]
    if most is not None:
        inflatable_class_registry[name] = _Bounded(most)  # type: ignore[assignment]
    try:
        yield
    except UNREADABLE as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UnreadableReplyError(f"it cannot be read ({why})") from error
    finally:
        inflatable_class_registry[name] = flowers


class _Bounded:
    """Stands where Flower looks for the class of arrays."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def inflate(self, content: bytes, children: dict[str, Any] | None = None) -> Array:
        """As `Array.inflate`, after the lengths of all listed chunks were added up."""
        ids = get_object_children_ids_from_object_content(content)
        listed = json.loads(get_object_body(content, Array))["arraychunk_ids"]
        self._left -= sum(len((children or {})[ids[place]].data) for place in listed)
        if self._left < 0:
            raise ValueError(f"its arrays have more than {self._most} bytes")
        return Array.inflate(content, children)
