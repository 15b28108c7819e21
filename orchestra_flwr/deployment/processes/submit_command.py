"""`orchestra-submit`: puts runs into a server's queue, lists them and cancels one."""

import sys

from orchestra_flwr.commands.flags import Flags
from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.deployment.run_queue import RunQueue, run_to_submit
from orchestra_flwr.files import at_home

QUEUE, CANCEL, LIST = "queue=", "cancel=", "--list"


def submit(flags: Flags) -> None:
    """Does what the command line says, and prints it.

    Raises:
        ConfigError: no queue, words that do not go together, or a run that could not be run.
        OSError: the queue cannot be read or written.
    """
    words = dict(line.split("=", 1) for line in flags.overrides if "=" in line)
    if not words.get("queue"):
        raise ConfigError("queue: must be given, the folder of a server's runs")
    queue = RunQueue(at_home(words["queue"]))
    if not queue.folder.exists():
        raise ConfigError(
            f"queue={queue.folder}: no such folder; a server that is started with "
            f"queue={queue.folder} makes it"
        )
    run = [line for line in flags.overrides if not line.startswith((QUEUE, CANCEL))]
    if LIST not in flags and "cancel" not in words:
        # Here, since its import takes five seconds, PyTorch's among them; a list takes one.
        from orchestra_flwr.deployment.processes.server_process import check_run

        config = run_to_submit(run)
        check_run(config)
        print(printable(f"submitted: {queue.put(config).name}"))
    elif run or (LIST in flags and "cancel" in words):
        raise ConfigError("--list, cancel: must be alone, with queue= only")
    elif LIST in flags:
        for queued in queue.runs():
            print(printable(f"{queued.name}  {queued.state}  {queued.folder}"))
    else:
        print(f"cancelled: {queue.cancel(words['cancel']).name}")
    if not queue.has_server:
        print(
            printable(
                f"no server works on {queue.folder} now: runs wait until one is started with "
                f"queue={queue.folder}"
            ),
            file=sys.stderr,
        )
