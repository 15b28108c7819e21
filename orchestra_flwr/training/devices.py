"""Where a process computes: its CPU threads, and how many processes a machine has room for."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from orchestra_flwr.machine_limits import usable_cpus, usable_memory

# Bytes of a process that trains a ResNet-18 on a CPU, or of the server; small networks take less.
PROCESS_MEMORY = 2**30


@contextmanager
def torch_threads(count: int | None = None) -> Iterator[None]:
    """Runs a block with `count` CPU threads (None: all that this process may use).

    The number of threads decides the order in which floats are added. A client therefore always
    computes with `training.threads`: its bits do not depend on the engine that runs it.
    """
    previous = torch.get_num_threads()
    torch.set_num_threads(count or usable_cpus())
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def cores_for_clients(threads: int) -> int:
    """This machine's CPU cores for processes that each train a client in `threads` threads.

    They are no more than there is memory for such processes beside the server, because a container
    whose memory runs out is killed whole; but always enough for one process.
    """
    processes = usable_memory() // PROCESS_MEMORY - 1
    return max(min(usable_cpus(), processes * threads), threads)
