"""Modules that run for several clients at once, their tensors stacked along a first axis."""

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
    """Whether modules run under vmap, which does not support all operations."""
    return _STACKED.get()
