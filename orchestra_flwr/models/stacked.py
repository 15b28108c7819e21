"""Whether modules run for several clients at once, whose tensors are stacked along a first axis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_STACKED: ContextVar[bool] = ContextVar("stacked", default=False)


@contextmanager
def stacked_clients() -> Iterator[None]:
    """In this block modules are called under `torch.func.vmap`."""
    token = _STACKED.set(True)
    try:
        yield
    finally:
        _STACKED.reset(token)


def stacked() -> bool:
    """Whether this is such a block: operations that vmap does not know must be left out."""
    return _STACKED.get()
