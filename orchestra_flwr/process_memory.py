"""The memory of processes: how much they hold, and when freed memory returns to the system."""

import ctypes
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # parameters of mallopt
NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Keeps freed memory with this process until :func:`return_freed_memory`.

    Every batch allocates the same activations. Fetching their pages anew costs a tenth of a small
    step, and of features of 224 x 224 pixels a third (docs/performance.md).
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


def used_memory(process: int | None = None) -> int:
    """Bytes that a process and all that it has started hold now; 0 where that is not known.

    Pages that several share are counted once: it is the sum of proportional set sizes.

    Args:
        process: its number; None: this one.
    """
    folder = Path("/proc") / str(process or os.getpid())
    total = 0
    with suppress(OSError):  # it has ended, is another user's, or this is no Linux
        for line in (folder / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total = 1024 * int(line.split()[1])
        for task in (folder / "task").iterdir():
            total += sum(used_memory(int(n)) for n in (task / "children").read_text().split())
    return total


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)
