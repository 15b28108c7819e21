"""When freed memory returns to the system, as far as glibc and torch can be told."""

import ctypes
from functools import cache
from typing import Any

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # parameters of mallopt
NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Freed memory stays with this process until :func:`return_freed_memory`.

    Every step allocates the same activations; fetching their pages anew costs a tenth of a step.
    """
    if hasattr(_libc(), "mallopt"):
        _libc().mallopt(M_MMAP_MAX, 0)
        _libc().mallopt(M_TRIM_THRESHOLD, NEVER)


def return_freed_memory() -> None:
    """Gives all freed memory back: to the system, and to a GPU's other processes."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    if hasattr(_libc(), "malloc_trim"):
        _libc().malloc_trim(0)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)
