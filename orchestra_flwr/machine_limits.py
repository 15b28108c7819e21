"""What this process may use of its machine: in a container often less than the machine has."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MEMBERSHIP = Path("/proc/self/cgroup")  # the control groups of this process
GROUPS = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """CPU cores that this process may use.

    They are those that it may run on, and at most the quota of its container: cores beyond it are
    only waited for.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, int(min([cores, *_cpu_quotas()])))


def usable_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or its container's limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_memory_limits()])


def _cpu_quotas() -> Iterator[float]:
    for group in _groups("cpu"):
        words = _words(group / "cpu.max")
        words = words or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if len(words) == 2 and words[0].isdigit():  # without a quota: max, -1 in version 1
            yield int(words[0]) / int(words[1])


def _memory_limits() -> Iterator[int]:
    for group in _groups("memory"):
        words = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes")
        if words and words[0].isdigit():
            yield int(words[0])


def _groups(controller: str) -> Iterator[Path]:
    """The control groups around this process, as far as it sees them, of versions 2 and 1.

    A container may see its own group as the outermost one, under a name that only the host knows.
    """
    for line in _text(MEMBERSHIP).splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        outermost = GROUPS / controller if controllers else GROUPS
        group = outermost / name.lstrip("/")
        yield from (g for g in (group, *group.parents) if g.is_relative_to(outermost))


def _words(file: Path) -> list[str]:
    return _text(file).split()


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text()
    return ""
