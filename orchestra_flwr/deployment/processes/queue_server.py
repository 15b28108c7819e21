"""A server that runs what is submitted to it, one after the other; clients stay connected."""

import math
import shlex
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.reporter import reporter
from orchestra_flwr.deployment.processes.server_process import (
    NotStartedError,
    RunCancelledError,
    check_run,
    invitation,
    serve,
)
from orchestra_flwr.deployment.processes.station import Station, opened
from orchestra_flwr.deployment.processes.superlink import check_alive
from orchestra_flwr.deployment.run_queue import CANCELLED, DONE, ENDED, FAILED, QueuedRun, RunQueue
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch.queue_log import QueueLog
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.files import at_home, read_json
from orchestra_flwr.folder_lock import FolderInUseError, locked
from orchestra_flwr.reporting import RunFolder, make_progress

POLL_SECONDS = 1.0
LAST_WORDS_SECONDS = 60.0
LATE_SECONDS = 60.0  # at least, for late clients to be met and take the encoder
AGAIN_SECONDS = 3600.0  # after which a client that still has no encoder is offered it again
FULL = 2**24  # bytes: a disk with less is why a run failed, and the next one would as well


def serve_queue(config: ServerConfig) -> None:
    """Runs what is in the queue, and waits for more, until it is stopped.

    Raises:
        ConfigError: another server has the queue, or others may write to it; keys or an address
            that cannot be used.
        FederationError: the SuperLink ended or takes no run, the disk is full, or a certificate
            has expired; the current run goes on with the next start.
        OSError: the queue cannot be written.
    """
    queue, say = RunQueue(at_home(str(config.queue))), reporter(config.logging.format)
    queue.make()
    try:
        with locked(queue.folder):
            log = QueueLog(queue, say)
            with opened(config, queue.folder, log.overhearing(say)) as station:
                say(invitation(config, station.gate.port))
                _QueueServer(queue, config, station, log, say).serve()
    except FolderInUseError as owner:
        raise ConfigError(f"queue={queue.folder}: {owner} serves it already") from None


@dataclass
class _QueueServer:
    _queue: RunQueue
    _config: ServerConfig
    _station: Station
    _log: QueueLog
    _say: Callable[..., None]
    # Run and client -> when, by monotonic.
    _offered: dict[tuple[str, str], float] = field(default_factory=dict)

    def serve(self) -> None:
        idle = False
        while True:
            check_alive(self._station.link)
            self._log.update()
            if (run := self._queue.next()) is not None:
                self._station.idle.starting = True
                self._run(run)
                idle = False
                continue
            if not idle:
                idle = True
                self._station.idle.waits()
                folder = self._queue.folder
                line = f"no run waits in {folder}: orchestra-submit queue={folder} ..."
                self._say(line, "idle")
            if not self._deliver_late():
                time.sleep(POLL_SECONDS)

    def _run(self, run: QueuedRun) -> None:
        how = "goes on" if run.has_begun else "begins"
        done = max(0, RunFolder(run.folder).done)
        self._log.begins(run)
        self._say(f"run {run.name}: {how}", "run_began", run=run.name)
        try:
            self._serve(run, run.config(self._config), lambda: self._cancelled(run))
            run.end(DONE)
        except RunCancelledError:
            pass
        except Exception as error:  # of whatever kind: the other runs do not wait for it
            check_alive(self._station.link)
            if (why := self._would_fail_all(error)) is not None:
                raise FederationError(
                    f"run {run.name}: {error}{why}; it goes on with the next start"
                ) from None
            if RunFolder(run.folder).done > done:  # what failed may pass, such as the network
                line = f"run {run.name}: {error}; it is tried again after its last round"
                self._say(line, level="warning")
                return
            run.end(f"{FAILED}: {error}")
        level, line = "info", f"run {run.name}: {run.state}"
        if run.state.startswith(FAILED):
            level, ended = "error", shlex.quote(str(run.path / ENDED))
            line += f"; when that is mended, it goes on after its last round: rm {ended}"
        self._say(line, "run_ended", level, run=run.name, state=run.state)

    def _would_fail_all(self, error: Exception) -> str | None:
        """What is to be done, where the server and not the run is to blame; None: the run is."""
        if shutil.disk_usage(self._queue.folder).free < FULL:
            return f"; the disk of {self._queue.folder} is full: make room"
        try:
            for certificate in self._station.keys.dated if self._station.keys else ():
                certificate.check()
        except ConfigError as expired:
            return f"; {expired}"
        return "" if isinstance(error, NotStartedError) else None

    def _cancelled(self, run: QueuedRun) -> str:
        with suppress(OSError):  # a network disk that is away for a moment ends no run
            self._log.update()
        return "cancelled by orchestra-submit" if run.state == CANCELLED else ""

    def _serve(
        self,
        run: QueuedRun,
        config: ServerConfig,
        cancelled: Callable[[], str],
        *,
        shows_summary: bool = True,
    ) -> None:
        check_run(config)
        if run.has_begun:
            _wait_until_free(run.folder)
        display, rounds = config.logging, config.federation.rounds
        with (
            RunFolder.open(config) as folder,
            make_progress(display.progress, rounds, timed=True, format=display.format) as progress,
        ):
            summary = serve(config, folder, progress, self._station, cancelled)
        if shows_summary:
            progress.finished(summary, run.folder)

    def _deliver_late(self) -> bool:
        """Sends the latest encoder to clients that its run has not met; returns whether it tried.

        They were away, or are new. The finished run is resumed to do it. A client that does not get
        the encoder then, for example because its network failed again, is offered it again after
        `AGAIN_SECONDS`.
        """
        run = next((run for run in reversed(self._queue.runs()) if run.state == DONE), None)
        if run is None:
            return False
        now = time.monotonic()
        offers = {
            (run.name, name): now
            for name in self._not_asked(run)
            if now - self._offered.get((run.name, name), -math.inf) > AGAIN_SECONDS
        }
        if not offers:
            return False
        names = ", ".join(sorted(name for _, name in offers))
        self._say(f"run {run.name}: its encoder goes to {names}")
        try:
            config = run.config(self._config)
            wait = max(config.share.wait, LATE_SECONDS)
            share = config.share.model_copy(update={"wait": wait})
            config = config.model_copy(update={"share": share})
            self._serve(run, config, self._has_work, shows_summary=False)
        except RunCancelledError as why:  # the new run may fail: then this is still the latest one
            offers = {}
            self._say(f"run {run.name}: its encoder was not sent to all: {why}")
        except Exception as error:
            check_alive(self._station.link)
            self._say(f"run {run.name}: its encoder was not sent: {error}", level="warning")
        self._offered |= offers
        return True

    def _has_work(self) -> str:
        return "another run waits" if self._queue.next() is not None else ""

    def _not_asked(self, run: QueuedRun) -> set[str]:
        """The connected clients that have not yet been asked whether they want its encoder."""
        with suppress(OSError, ValueError, LookupError, TypeError):
            sent = read_json(run.folder / "summary.json")["encoder_sent"]
            asked = {*sent["clients"], *sent["without"]} - {*sent["away"]}
            return {name for name in self._station.connected if name is not None} - asked
        return set()


def _wait_until_free(folder: Path) -> None:
    """Waits for the app of a server that was killed a moment ago: it is about to end as well."""
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while time.monotonic() < deadline:
        with suppress(FolderInUseError), locked(folder):
            return
        time.sleep(POLL_SECONDS)
