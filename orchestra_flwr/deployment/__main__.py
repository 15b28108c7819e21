"""``python -m orchestra_flwr.deployment``: copies the files for services and containers."""

import shutil
import sys
from collections.abc import Sequence

from orchestra_flwr.commands.endings import run_command
from orchestra_flwr.config import ConfigError
from orchestra_flwr.files import at_home, beside_package

USAGE = """\
usage: python -m orchestra_flwr.deployment folder=deploy

Makes the folder, with systemd units, a Compose file, a Helm chart, a job for KubeRay, a Grafana
dashboard and alert rules for Prometheus. What each is for: docs/deployment.md, docs/operate.md.

Exit code 0: done, 2: an error. A folder that exists is left as it is.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)

    def work() -> None:
        key, _, value = words[0].partition("=") if len(words) == 1 else ("", "", "")
        if key in ("--help", "-h"):
            print(USAGE, end="")
            return
        if key != "folder" or not value:
            raise ConfigError("folder= must name the folder to be made (see --help)")
        folder = at_home(value)
        try:
            shutil.copytree(
                beside_package("deploy"), folder, ignore=shutil.ignore_patterns("__pycache__")
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"folder={folder}: cannot be made: {reason}") from None
        print("\n".join(sorted(str(path) for path in folder.iterdir())))

    return run_command(work, "stopped")


if __name__ == "__main__":
    sys.exit(main())
