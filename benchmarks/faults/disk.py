"""Small disks that can be filled up."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ENTERED = "ORCHESTRA_FAULTS_MOUNTS"
MOUNTED_MB = 96


def with_own_mounts() -> bool:
    """Starts this program again where its mounts vanish with it; False: that is not allowed."""
    if ENTERED in os.environ:
        return os.environ[ENTERED] == "yes"
    unshare = shutil.which("unshare")
    inside = [unshare, "--mount", "--propagation", "private"] if unshare else None
    allowed = inside is not None and os.geteuid() == 0 and not _fails([*inside, "true"])
    os.environ[ENTERED] = "yes" if allowed else "no"
    if allowed and inside:
        os.execv(inside[0], [*inside, sys.executable, *sys.argv])
    return False


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mounts a file system of its own on a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    size = f"size={MOUNTED_MB}m,mode=0755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "faults", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Not a byte is left on the folder's disk within the block, which must be a small one."""
    if not folder.is_mount():
        raise OSError(errno.EINVAL, "not a disk of its own", str(folder))
    ballast = folder / ".ballast"
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while os.write(descriptor, bytes(size)) == size:
                    pass
        yield
    finally:
        os.close(descriptor)
        ballast.unlink()


def _fails(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode != 0
