"""Clients of one process that train at the same time: a thread each, on a GPU a stream each.

A step of a small batch leaves a large GPU idle most of the time; steps of several clients fill it.
Each client computes the same bits as it would alone.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

_THREAD = threading.local()


@contextmanager
def client_threads(count: int, device: torch.device) -> Iterator[ThreadPoolExecutor]:
    """Threads for `count` clients; on exit drops work that has not begun and waits for the rest.

    Args:
        count: threads, at least 1.
    """
    pool = ThreadPoolExecutor(count, "client", _begin, (device,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def is_beside_others() -> bool:
    """Whether this thread is one of them."""
    return getattr(_THREAD, "beside_others", False)


def _begin(device: torch.device) -> None:
    """Gives the thread a stream of its own on a GPU, which waits for no other thread's work."""
    _THREAD.beside_others = True
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
