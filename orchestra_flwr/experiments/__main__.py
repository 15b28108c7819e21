"""`orchestra-report folder=FOLDER`: a report of the runs in a folder."""

import sys
from collections.abc import Sequence

from orchestra_flwr import __version__
from orchestra_flwr.commands.endings import BEGINS_AGAIN, run_command, stop_on_sigterm
from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.output_streams import ignore_closed_streams
from orchestra_flwr.files import at_home

USAGE = """\
usage: orchestra-report folder=FOLDER [plugins=[PACKAGE,...]]

Writes report.html (one page that needs nothing else), report.md and figures/ into FOLDER, from the
run folders in it: those of orchestra-experiment, or any others. Runs that use packages of plug-ins
are read only if you name these packages.

Exit code 0: done, 1: a file cannot be read or written, 2: no folder of runs, 130 or 143: stopped.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    # Heavy imports wait for help and for wrong arguments.
    ignore_closed_streams()
    stop_on_sigterm()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    if "--version" in arguments:
        print(f"orchestra-flwr {__version__}")
        return 0
    named = [text.partition("=")[2] for text in arguments if text.startswith("plugins=")]
    others = [text for text in arguments if not text.startswith("plugins=")]
    folders = [text.removeprefix("folder=") for text in others]
    if len(folders) != 1:
        print(USAGE, file=sys.stderr)
        return 2
    return run_command(lambda: _report(folders[0], named), BEGINS_AGAIN, OSError, ValueError)


def _report(folder: str, named: Sequence[str]) -> None:
    """Writes the report of a folder, with the packages that `plugins=` named."""
    from orchestra_flwr.extras import require_server
    from orchestra_flwr.plugins import PluginError, import_packages

    try:
        import_packages([name for text in named for name in text.strip("[]").split(",") if name])
    except PluginError as error:
        raise ConfigError(f"plugins: {error}") from None
    require_server("orchestra-report")
    from orchestra_flwr.experiments.report.writer import write_report

    print(f"report: {write_report(at_home(folder))}")


if __name__ == "__main__":
    sys.exit(main())
