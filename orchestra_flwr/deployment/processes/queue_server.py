"""A server that runs what is submitted to it, one after the other; clients stay connected."""

import sys
import time
from contextlib import suppress
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.deployment.processes.server_process import (
    RunCancelledError,
    check_run,
    invitation,
    serve,
)
from orchestra_flwr.deployment.processes.station import Station, opened
from orchestra_flwr.deployment.processes.superlink import check_alive
from orchestra_flwr.deployment.run_queue import CANCELLED, DONE, FAILED, QueuedRun, RunQueue
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.files import make_private_folder
from orchestra_flwr.folder_lock import FolderInUseError, locked
from orchestra_flwr.reporting import RunFolder, make_progress, print_summary

POLL_SECONDS = 1.0
LAST_WORDS_SECONDS = 60.0


def serve_queue(config: ServerConfig) -> None:
    """Runs what is in the queue, and waits for more, until it is stopped.

    Raises:
        ConfigError: another server has the queue; keys or an address that cannot be used.
        FederationError: the SuperLink ended; the run that it was in goes on with the next start.
        OSError: the queue cannot be written.
    """
    queue = RunQueue(Path(str(config.queue)))
    make_private_folder(queue.folder)
    try:
        with locked(queue.folder), opened(config, queue.folder, _say) as station:
            _say(invitation(config, station.gate.port))
            _serve(queue, config, station)
    except FolderInUseError as owner:
        raise ConfigError(f"queue={queue.folder}: {owner} serves it already") from None


def _serve(queue: RunQueue, config: ServerConfig, station: Station) -> None:
    idle = False
    while True:
        check_alive(station.link)
        if (run := queue.next()) is None:
            if not idle:
                _say(f"no run waits in {queue.folder}: orchestra-submit queue={queue.folder} ...")
            idle = True
            time.sleep(POLL_SECONDS)
            continue
        idle = False
        _say(f"run {run.name}: {'goes on' if run.has_begun else 'begins'}")
        try:
            _one(run, config, station)
            run.end(DONE)
        except RunCancelledError:
            pass
        except Exception as error:  # of whatever kind: the other runs do not wait for it
            check_alive(station.link)
            run.end(f"{FAILED}: {error}")
        station.report = _say
        _say(f"run {run.name}: {run.state}")


def _one(run: QueuedRun, server: ServerConfig, station: Station) -> None:
    config = run.config(server)
    check_run(config)
    if run.has_begun:
        _wait_until_free(run.folder)
    mode, rounds = config.logging.progress, config.federation.rounds
    with RunFolder.open(config) as folder, make_progress(mode, rounds, timed=True) as progress:
        summary = serve(
            config, folder, progress, station, is_cancelled=lambda: run.state == CANCELLED
        )
    print_summary(summary, run.folder)


def _wait_until_free(folder: Path) -> None:
    """Waits for the app of a server that was killed a moment ago: it is about to end as well."""
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while time.monotonic() < deadline:
        with suppress(FolderInUseError), locked(folder):
            return
        time.sleep(POLL_SECONDS)


def _say(line: str) -> None:
    with suppress(BrokenPipeError):
        print(f"{time.strftime('%H:%M:%S')} {printable(line)}", file=sys.stdout, flush=True)
