"""What Linux says of processes, in /proc."""

import os
from collections.abc import Iterator
from pathlib import Path


def status(pid: int | str = "self") -> dict[str, int]:
    """The numbers of a process's `status` by their names; sizes are in kB.

    Raises:
        OSError: it has ended.
    """
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {words[0][:-1]: int(words[1]) for words in lines if words[1:] and words[1].isdecimal()}


def memory(key: str) -> int:
    """A size of this process, such as VmRSS (now) or VmHWM (its peak), in bytes."""
    return 1024 * status()[key]


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far.

    Raises:
        OSError: it has ended.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processes() -> Iterator[tuple[int, str, int]]:
    """Id, state and parent's id of each process of this machine."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        yield int(stat.parent.name), state, int(parent)


def descendants(pid: int) -> list[int]:
    """Ids of all living processes that it started, and that those started."""
    children: dict[int, list[int]] = {}
    for child, state, parent in processes():
        if state != "Z":
            children.setdefault(parent, []).append(child)
    pids = [pid]
    for parent in pids:
        pids += children.get(parent, [])
    return pids[1:]
