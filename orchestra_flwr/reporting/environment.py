"""The software and hardware of a run, for its summary."""

import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

import orchestra_flwr
from orchestra_flwr.machine_limits import usable_cpus
from orchestra_flwr.plugins import codes_of


def environment(plugins: Iterable[str] = ()) -> dict[str, str | int | None]:
    """Versions of this package and its dependencies, and facts about the machine.

    None where unknown. `commit` is as in :func:`git_commit`; of users' packages, which have no
    version, there is the fingerprint of their code.

    Raises:
        PluginError: a user's package cannot be imported.
    """
    return {
        **codes_of(plugins),  # first: a package of one of the names below changes none of them
        "orchestra_flwr": orchestra_flwr.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "flwr", "numpy")},
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": usable_cpus(),
        "commit": _own_commit(),
    }


@cache
def _own_commit() -> str | None:
    """The commit of the running code, read once: later commits do not change imported code."""
    return git_commit(Path(orchestra_flwr.__file__))


def git_commit(file: Path) -> str | None:
    """The commit of the checkout that tracks `file`, with "-dirty" if it was changed; else None."""
    # An environment inside somebody else's checkout is not tracked there: not our commit.
    if _git(file, "ls-files", "--error-unmatch", file.name) is None:
        return None
    commit = _git(file, "rev-parse", "HEAD")
    if commit is None:
        return None
    return commit + ("-dirty" if _git(file, "status", "--porcelain", "-uno") else "")


def _git(file: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(file.parent), *arguments],  # noqa: S607 (git is where its user has it)
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except (OSError, UnicodeError):
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None) or platform.processor() or platform.machine() or None
